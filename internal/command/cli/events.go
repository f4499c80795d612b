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
	options := addPastAndNew(cmd, "new events", "events")
	cmd.RunE = socket.ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		return printLines(cmd, output, c.Events(ctx, options()), options().Follow, writeEvent)
	})
	return cmd
}

// writeEvent describes an event in one line, which a terminal may wrap.
func writeEvent(w io.Writer, e client.Event) error {
	t := terminalOf(w)
	return write(w, fmt.Appendf(nil, "%s  %s  %s  %s\n", t.paint(e.Time.Local().Format(millis), faint),
		t.paint(fmt.Sprintf("%-12s", escape(e.Kind)), toneOf(e.Kind)), pluginID(e.Type, e.Name), escape(e.Message)))
}
