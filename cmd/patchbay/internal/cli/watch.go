package cli

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
	"github.com/patchbay-dev/patchbay/internal/backoff"
)

// watchPace is the minimum time between two lists, so that many events do not keep the daemon busy.
const watchPace = 250 * time.Millisecond

// watchList shows the plugins that match, and then each that changes, until it is interrupted.
func watchList(ctx context.Context, c *client.Client, cmd *cobra.Command, output *command.Choice, only *filter) error {
	if output.Value == "yaml" {
		return command.WrongUsage(cmd, "--watch cannot print YAML, which is one document: use -o json, which is one object per line")
	}
	shown := &watched{cmd: cmd, output: output}
	for {
		switch err := shown.follow(ctx, c, only); {
		case errors.Is(err, context.Canceled):
			return nil
		case errors.Is(err, client.ErrBehind): // what was missed is in the next list
		default:
			return err
		}
	}
}

// watched is the state of a list that is watched.
type watched struct {
	cmd    *cobra.Command
	output *command.Choice
	last   []*patchbayv1.Plugin
	// table has the rows of the first list, which determine the columns; nil before the first list.
	table *console.Table
}

// follow lists the plugins once, and again after events, until ctx is done or the daemon goes away.
func (s *watched) follow(ctx context.Context, c *client.Client, only *filter) error {
	ctx, cancel := context.WithCancelCause(ctx)
	told := make(chan struct{}, 1) // has a value if there were events since the last list began
	ended := make(chan struct{})
	defer func() { cancel(nil); <-ended }()
	go func() {
		defer close(ended)
		// With a tail of 1, an event arrives when the stream is established, so that no change between the first list and the stream is
		// missed.
		for _, err := range c.Events(ctx, &patchbayv1.WatchEventsRequest{Follow: true, Tail: new(uint32(1)), Types: only.types}) {
			if err != nil {
				cancel(err)
				return
			}
			select {
			case told <- struct{}{}:
			default:
			}
		}
	}()
	for {
		looked := time.Now()
		listing, err := only.list(ctx, c)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if err := s.show(listing.Plugins); err != nil {
			return err
		}
		select {
		case <-told:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if !backoff.Pause(ctx, watchPace-time.Since(looked)) {
			return context.Cause(ctx)
		}
	}
}

// show writes the instances that have changed since the last call.
func (s *watched) show(now []*patchbayv1.Plugin) error {
	was := make(map[string]*patchbayv1.Plugin, len(s.last))
	for _, p := range s.last {
		was[instanceKey(p)] = p
	}
	var changed []*patchbayv1.Plugin
	for _, p := range now {
		before, known := was[instanceKey(p)]
		if !known || !proto.Equal(before, p) {
			changed = append(changed, p)
		}
		delete(was, instanceKey(p))
	}
	for _, p := range s.last {
		if _, gone := was[instanceKey(p)]; gone {
			p.State, p.Current = stateGone, false
			changed = append(changed, p)
		}
	}
	s.last = now
	if len(changed) == 0 {
		return nil
	}
	return s.write(changed)
}

// instanceKey identifies an instance by fields that do not change after its socket was found.
func instanceKey(p *patchbayv1.Plugin) string {
	switch {
	case p.SocketPath == "":
		return command.PluginID(p.Type, p.Name)
	case p.FirstSeen == nil:
		return p.SocketPath
	}
	return p.SocketPath + " " + p.FirstSeen.AsTime().String()
}

func (s *watched) write(changed []*patchbayv1.Plugin) error {
	w := s.cmd.OutOrStdout()
	switch s.output.Value {
	case "json":
		for _, p := range changed {
			if err := command.WriteJSONLine(w, p); err != nil {
				return err
			}
		}
		return nil
	case "name":
		return command.WriteLines(w, command.Names(changed))
	}
	return s.writeRows(w, changed)
}

// writeRows writes rows with the columns of the first list.
func (s *watched) writeRows(w io.Writer, changed []*patchbayv1.Plugin) error {
	rows := pluginTable(console.TerminalOf(w), changed, time.Now())
	if s.table == nil {
		s.table = rows
		return rows.Write(w)
	}
	first := len(s.table.Rows) + 1 // behind the head
	both := *s.table
	both.Rows = append(slices.Clone(both.Rows), rows.Rows...)
	return console.Write(w, []byte(strings.Join(both.Lines()[first:], "\n")+"\n"))
}
