package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
)

func newEventsCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happened, in order.",
		Long: `Show the past events that the daemon keeps, oldest first: registrations, refusals, failures and departures of plugins.

With --follow the command goes on with new events until it is interrupted, which is no failure, or the daemon goes away, which is
one.`,
		Example: `  # The last ten events, and then every new one.
  patchbay events --tail 10 --follow

  # Only refusals, with their reasons.
  patchbay events -o json | jq -r 'select(.kind == "refused") | .message'`,
	}
	socket := addControlSocket(cmd, paths)
	output := addLines(cmd)
	flags := addPastAndNew(cmd, "new events", "events")
	cmd.RunE = socket.ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		events := c.Events(ctx, client.EventsOptions{Follow: flags.follow, Tail: flags.tail()})
		return printLines(cmd, output, events, flags.follow, writeEvent)
	})
	return cmd
}

func writeEvent(w io.Writer, e client.Event) error {
	return write(w, []byte(eventLine(terminalOf(w), e)+"\n"))
}

// eventLine describes an event in one line, which a terminal may wrap.
func eventLine(t terminal, e client.Event) string {
	return fmt.Sprintf("%s  %s  %s  %s",
		t.paint(e.Time.Local().Format("2006-01-02T15:04:05.000Z07:00"), faint), t.paint(fmt.Sprintf("%-12s", escape(e.Kind)), toneOf(e.Kind)),
		pluginID(e.Type, e.Name), escape(e.Message))
}
