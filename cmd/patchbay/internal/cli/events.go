package cli

import (
	"context"
	"errors"
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
	request := &patchbayv1.WatchEventsRequest{}
	command.AddPastAndNew(cmd, &request.Follow, &request.Tail, "new events", "events")
	addEventFilters(cmd, socket, request)
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		return command.PrintLines(cmd, output, c.Events(ctx, request), request.Follow, writeEvent)
	})
	return cmd
}

// addEventFilters adds the flags that select events.
func addEventFilters(cmd *cobra.Command, socket *command.ControlSocket, request *patchbayv1.WatchEventsRequest) {
	var name plugin.Name
	flags := cmd.Flags()
	flags.StringSliceVar(&request.Types, "type", nil, "only events of plugins of these types, or with these roles")
	command.AddWords(cmd, &request.Kinds, "kind", "only these `kinds` of events, for example refused", eventKinds)
	flags.Func("plugin", "only events of this `plugin`: TYPE/NAME, ROLE/NAME, or the name of a launched plugin", func(text string) error {
		var isWhole bool
		if name, isWhole = plugin.ParseName(text); !isWhole {
			name = plugin.Name{Name: text}
		}
		return nil
	})
	flags.Func("since", "only events since this `time`: a duration before now, such as 24h, or a time, such as 2006-01-02T15:04:05Z",
		func(text string) (err error) {
			request.Since, err = sinceTime(text, time.Now())
			return err
		})
	command.CompleteFlag(cmd, "plugin", command.CompletePlugins(socket))
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case name.Type != "" && len(request.Types) > 0:
			return command.WrongUsage(cmd, "--plugin names a type already: leave --type out")
		case name.Type != "":
			request.Types = []string{name.Type}
		}
		if name.Name != "" {
			request.Names = []string{name.Name}
		}
		return nil
	}
}

// sinceTime parses a duration before now or a time.
func sinceTime(text string, now time.Time) (*timestamppb.Timestamp, error) {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return timestamppb.New(now.Add(-d)), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return timestamppb.New(t), nil
		}
	}
	return nil, errors.New("it is neither a duration, such as 90m or 24h, nor a time, such as 2006-01-02 or 2006-01-02T15:04:05Z")
}

func writeEvent(w io.Writer, e *patchbayv1.Event) error {
	t := console.TerminalOf(w)
	return console.Write(w, fmt.Appendf(nil, "%s  %s  %s  %s\n", t.Paint(e.Time.AsTime().Local().Format(console.Millis), console.Faint),
		t.Paint(fmt.Sprintf("%-12s", console.Escape(e.Kind)), console.ToneOf(e.Kind)), command.PluginID(e.Type, e.Name),
		console.Escape(e.Message)))
}
