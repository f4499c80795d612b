package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
	"github.com/patchbay-dev/patchbay/plugin"
)

func newEventsCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show the events of plugins",
		Long: `Show the past events that the daemon keeps, oldest first, including those from before its last restart: registrations, refusals,
failures and removals of plugins.

With --follow the command continues with new events until it is interrupted, and fails if the daemon goes away.`,
		Example: `  # The last ten events, and then every new one.
  patchbay events --tail 10 --follow

  # What happened to a plugin since yesterday?
  patchbay events --plugin CSIPlugin/hostpath.csi.k8s.io --since 24h

  # Only refusals, with their reasons.
  patchbay events --kind refused -o json | jq -r .message`,
	}
	socket := command.AddControlSocket(cmd, paths)
	output := command.AddLines(cmd)
	past := command.AddPastAndNew(cmd, "new events", "events")
	wanted := addWanted(cmd, socket)
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		options, err := wanted(time.Now())
		if err != nil {
			return err
		}
		options.Follow, options.Tail = past()
		return command.PrintLines(cmd, output, c.Events(ctx, options), options.Follow, writeEvent)
	})
	return cmd
}

func addWanted(cmd *cobra.Command, socket *command.ControlSocket) func(now time.Time) (*patchbayv1.WatchEventsRequest, error) {
	types := cmd.Flags().StringSlice("type", nil, "only events of plugins of these types, or with these roles")
	kinds, checkKinds := command.AddWords(cmd, "kind", "only these kinds of events, for example refused", eventKinds)
	wanted := cmd.Flags().String("plugin", "", "only events of this plugin: TYPE/NAME, ROLE/NAME, or the name of a launched plugin")
	since := cmd.Flags().String("since", "",
		"only events since this time: a duration before now, such as 24h, or a time, such as 2006-01-02T15:04:05Z")
	command.CompleteFlag(cmd, "plugin", command.CompletePlugins(socket))
	return func(now time.Time) (options *patchbayv1.WatchEventsRequest, err error) {
		if err := checkKinds(); err != nil {
			return options, err
		}
		options = &patchbayv1.WatchEventsRequest{Types: *types, Kinds: *kinds}
		if *wanted != "" {
			name, ok := plugin.ParseName(*wanted)
			switch {
			case ok && len(*types) > 0:
				return options, command.WrongUsage(cmd, "--plugin names a type already: leave --type out")
			case ok:
				options.Types, options.Names = []string{name.Type}, []string{name.Name}
			default:
				options.Names = []string{*wanted}
			}
		}
		from, err := sinceTime(*since, now)
		if err != nil {
			return options, command.WrongUsage(cmd, "%w", err)
		}
		if !from.IsZero() {
			options.Since = timestamppb.New(from)
		}
		return options, nil
	}
}

// sinceTime parses a duration before now or a time. Empty text gives the zero time.
func sinceTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("--since %q is neither a duration, such as 90m or 24h, nor a time, such as 2006-01-02 or "+
		"2006-01-02T15:04:05Z", text)
}

func writeEvent(w io.Writer, e *patchbayv1.Event) error {
	t := console.TerminalOf(w)
	return console.Write(w, fmt.Appendf(nil, "%s  %s  %s  %s\n", t.Paint(e.Time.AsTime().Local().Format(console.Millis), console.Faint),
		t.Paint(fmt.Sprintf("%-12s", console.Escape(e.Kind)), console.ToneOf(e.Kind)), command.PluginID(e.Type, e.Name),
		console.Escape(e.Message)))
}
