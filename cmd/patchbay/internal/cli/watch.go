package cli

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
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

// followed is an event, or the error that ended a stream of events.
type followed struct {
	event *patchbayv1.Event
	err   error
}

// follow sends the events of the types to news until ctx is done. After an error it begins again. When a stream is established, the last
// events arrive, so that no change between a list and the stream is missed.
func follow(ctx context.Context, c *client.Client, tail uint32, types []string, news chan<- followed) {
	for ctx.Err() == nil {
		for e, err := range c.Events(ctx, &patchbayv1.WatchEventsRequest{Follow: true, Tail: &tail, Types: types}) {
			select {
			case news <- followed{e, err}:
			case <-ctx.Done():
				return
			}
		}
		backoff.Pause(ctx, topEvery)
	}
}

// watchList shows the plugins that match, and then each that changes, until it is interrupted or the daemon goes away.
func watchList(ctx context.Context, c *client.Client, cmd *cobra.Command, output *command.Choice, only *filter) error {
	if output.Value == "yaml" {
		return command.WrongUsage(cmd, "--watch cannot print YAML, which is one document: use -o json, which is one object per line")
	}
	shown := &watched{cmd: cmd, output: output}
	return onChange(ctx, c, only.types, func() (bool, error) { return false, shown.list(ctx, c, only) })
}

// onChange calls look at once, and again after events of the types, until it returns true or an error, ctx is done or the daemon goes away.
func onChange(ctx context.Context, c *client.Client, types []string, look func() (done bool, err error)) error {
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	news, soon := make(chan followed), time.NewTimer(0)
	defer soon.Stop()
	isPending, looked := true, time.Now()
	following.Go(func() { follow(ctx, c, 1, types, news) })
	for {
		var isDone bool
		var err error
		select {
		case <-ctx.Done():
		case n := <-news:
			if !errors.Is(n.err, client.ErrBehind) { // what was missed is in the next list
				err = n.err
			}
			if !isPending {
				soon.Reset(watchPace - time.Since(looked))
			}
			isPending = true
		case <-soon.C:
			isPending, looked = false, time.Now()
			isDone, err = look()
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil || isDone:
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

// list writes the instances that have changed since the last call.
func (s *watched) list(ctx context.Context, c *client.Client, only *filter) error {
	listing, err := only.list(ctx, c)
	if err != nil {
		return err
	}
	now := listing.Plugins
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
