package cli

import (
	"context"
	"errors"
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
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	socket := addControlSocket(cmd, paths)
	output := addChoice(cmd, "output", "o", "output format: one line of text, or one JSON object a line", "text", "json")
	follow := cmd.Flags().BoolP("follow", "f", false, "go on with new events")
	tail := cmd.Flags().Uint32("tail", 0, "number of past events to show (default all that are kept)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := socket.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		options := client.EventsOptions{Follow: *follow}
		if cmd.Flags().Changed("tail") {
			options.Tail = tail
		}
		printEvent := writeEvent
		if output.value == "json" {
			printEvent = func(w io.Writer, e client.Event) error { return writeJSONLine(w, e) }
		}
		for event, err := range c.Events(cmd.Context(), options) {
			if err != nil {
				if *follow && errors.Is(err, context.Canceled) {
					return nil
				}
				return err
			}
			if err := printEvent(cmd.OutOrStdout(), event); err != nil {
				return err
			}
		}
		return nil
	}
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
