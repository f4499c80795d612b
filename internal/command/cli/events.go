package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-runewidth"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/patchbay-dev/patchbay/client"
)

func newEventsCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happened, in order.",
		Long: `Show the past events that the daemon keeps, oldest first, also those from before it was started anew: registrations, refusals,
failures and departures of plugins.

With --follow the command goes on with new events until it is interrupted, which is no failure, or the daemon goes away, which is
one.`,
		Example: `  # The last ten events, and then every new one.
  patchbay events --tail 10 --follow

  # What became of a plugin since yesterday?
  patchbay events --plugin CSIPlugin/hostpath.csi.k8s.io --since 24h

  # Only refusals, with their reasons.
  patchbay events --kind refused -o json | jq -r .message`,
	}
	socket := addControlSocket(cmd, paths)
	output := addLines(cmd)
	past := addPastAndNew(cmd, "new events", "events")
	wanted := addWanted(cmd, socket)
	cmd.RunE = socket.ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		options, err := wanted(time.Now())
		if err != nil {
			return wrongUsage(cmd, "%w", err)
		}
		options.Follow, options.Tail = past().Follow, past().Tail
		return printLines(cmd, output, c.Events(ctx, options), options.Follow, writeEvent)
	})
	return cmd
}

// addWanted adds the flags that say which events are wanted.
func addWanted(cmd *cobra.Command, socket *controlSocket) func(now time.Time) (client.EventsOptions, error) {
	types := cmd.Flags().StringSlice("type", nil, "only events of plugins of these types")
	kinds := cmd.Flags().StringSlice("kind", nil, "only these kinds of events, for example refused")
	plugin := cmd.Flags().String("plugin", "", "only events of this plugin: TYPE/NAME, or the name of a launched one")
	since := cmd.Flags().String("since", "", "only events from this time on: how long ago, as 24h, or a time, as 2006-01-02T15:04:05Z")
	completeFlag(cmd, "plugin", completePlugins(socket))
	return func(now time.Time) (options client.EventsOptions, err error) {
		options = client.EventsOptions{Types: *types, Kinds: *kinds}
		if *plugin != "" {
			ptype, name, ok := client.ParsePlugin(*plugin)
			switch {
			case ok && len(*types) > 0:
				return options, errors.New("--plugin names a type already: leave --type out")
			case ok:
				options.Types, options.Names = []string{ptype}, []string{name}
			default:
				options.Names = []string{*plugin}
			}
		}
		options.Since, err = sinceTime(*since, now)
		return options, err
	}
}

// sinceTime reads how long ago something was, or when; empty for the beginning of time.
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
	return time.Time{}, fmt.Errorf("--since %q is neither a duration, as 90m or 24h, nor a time, as 2006-01-02 or 2006-01-02T15:04:05Z", text)
}

// writeEvent describes an event in one line, which a terminal may wrap.
func writeEvent(w io.Writer, e client.Event) error {
	t := terminalOf(w)
	return write(w, fmt.Appendf(nil, "%s  %s  %s  %s\n", t.paint(e.Time.Local().Format(millis), faint),
		t.paint(fmt.Sprintf("%-12s", escape(e.Kind)), toneOf(e.Kind)), pluginID(e.Type, e.Name), escape(e.Message)))
}

const (
	// topEvery is how often the screen is renewed without an event: ages grow, and states that have no event pass.
	topEvery = 2 * time.Second
	// topSettle is how long events are gathered before the screen is renewed.
	topSettle = 100 * time.Millisecond
	// topEvents is how many of the last events are shown.
	topEvents = 5
)

func newTopCommand(paths paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the plugins live.",
		Long: `Show all plugins and the last events, renewed as they change, until q or Ctrl-C. Those that are not well come first. The arrows,
Page Up and Page Down, or j and k, move through the list.

It needs a terminal; "patchbay list" and "patchbay events --follow" are for everything else.`,
		Example: `  patchbay top`,
	}
	socket := addControlSocket(cmd, paths)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if !isTerminal(cmd.OutOrStdout()) || !isTerminal(os.Stdin) {
			return wrongUsage(cmd, `"patchbay top" needs a terminal: use "patchbay list" or "patchbay events --follow"`)
		}
		return nil
	}
	cmd.RunE = socket.ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		out := cmd.OutOrStdout()
		first, err := c.List(ctx) // an error belongs on the ordinary screen
		if err != nil {
			return err
		}
		before, err := term.MakeRaw(int(os.Stdin.Fd()))
		if err != nil {
			return fmt.Errorf("cannot read single keys from the terminal: %w", err)
		}
		fmt.Fprint(out, "\x1b[?1049h\x1b[?25l") // another screen, no cursor
		defer func() {
			fmt.Fprint(out, "\x1b[?25h\x1b[?1049l")
			_ = term.Restore(int(os.Stdin.Fd()), before)
		}()
		v := &topView{out: out, listing: first}
		return v.run(ctx, c, readKeys(os.Stdin))
	})
	return cmd
}

// key is one press of a key that means something.
type key int

const (
	keyQuit key = iota
	keyUp
	keyDown
	keyPageUp
	keyPageDown
)

var keyNames = map[string]key{
	"q": keyQuit, "\x03": keyQuit, "\x1b": keyQuit, "k": keyUp, "\x1b[A": keyUp, "j": keyDown, "\x1b[B": keyDown,
	"\x1b[5~": keyPageUp, "\x1b[6~": keyPageDown, " ": keyPageDown,
}

// readKeys reads keys until r ends. Its goroutine waits in a read that cannot be interrupted, and ends with the process.
func readKeys(r io.Reader) <-chan key {
	keys := make(chan key)
	go func() {
		defer close(keys)
		b := make([]byte, 16)
		for {
			n, err := r.Read(b)
			if k, ok := keyNames[string(b[:n])]; ok {
				keys <- k
			}
			if err != nil {
				return
			}
		}
	}()
	return keys
}

// topView is what the command shows.
type topView struct {
	out     io.Writer
	listing client.Listing
	events  []client.Event
	err     error // why it is not up to date
	from    int   // the first row that is shown
}

// run shows the view until a key or ctx ends it.
func (v *topView) run(ctx context.Context, c *client.Client, keys <-chan key) error {
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	news := make(chan client.Event)
	following.Go(func() { follow(ctx, c, news) })
	renew := time.NewTimer(0)
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case k, ok := <-keys:
			if !ok || k == keyQuit {
				return nil
			}
			v.scroll(k)
		case e := <-news:
			v.events = append(v.events, e)
			v.events = v.events[max(len(v.events)-topEvents, 0):]
			renew.Reset(topSettle)
			continue
		case <-renew.C:
			listing, err := v.list(ctx, c)
			if v.err = err; err == nil {
				v.listing = listing
			}
			renew.Reset(topEvery)
		}
		screen := terminalOf(v.out)
		if screen.width == 0 || screen.height == 0 { // a serial line does not say
			screen.width, screen.height = 80, 24
		}
		if _, err := io.WriteString(v.out, v.draw(screen, time.Now())); err != nil {
			return fmt.Errorf("cannot write the output: %w", err)
		}
	}
}

func (v *topView) list(ctx context.Context, c *client.Client) (client.Listing, error) {
	ctx, cancel := answerInTime(ctx)
	defer cancel()
	return c.List(ctx)
}

// follow passes events on until ctx ends. When the daemon goes away it waits for it to come back.
func follow(ctx context.Context, c *client.Client, news chan<- client.Event) {
	tail := uint32(topEvents)
	for ctx.Err() == nil {
		for e, err := range c.Events(ctx, client.EventsOptions{Follow: true, Tail: &tail}) {
			if err != nil {
				break
			}
			select {
			case news <- e:
			case <-ctx.Done():
				return
			}
		}
		_ = pause(ctx, topEvery) // the loop looks at ctx
	}
}

func (v *topView) scroll(k key) {
	const page = 10
	v.from = max(0, v.from+map[key]int{keyUp: -1, keyDown: 1, keyPageUp: -page, keyPageDown: page}[k])
}

// draw returns what fills the screen.
func (v *topView) draw(screen terminal, now time.Time) string {
	plugins := slices.Clone(v.listing.Plugins)
	rank := map[tone]int{bad: 0, busy: 1, good: 2, faint: 3}
	slices.SortStableFunc(plugins, func(a, b client.Plugin) int { return cmp.Compare(rank[toneOf(a.State)], rank[toneOf(b.State)]) })

	top := []string{v.summary(screen, plugins)}
	for _, c := range v.listing.Conditions {
		if c.Status != "ok" {
			top = append(top, screen.paint(truncate(escape(c.Name)+": "+escape(c.Message), screen.width), bad))
		}
	}
	top = append(top, "")
	var bottom []string
	if len(v.events) > 0 {
		bottom = append(bottom, "")
	}
	for _, e := range v.events {
		line := fmt.Sprintf("%s  %-12s  %s  %s", e.Time.Local().Format("15:04:05"), escape(e.Kind), pluginID(e.Type, e.Name), escape(e.Message))
		bottom = append(bottom, screen.paint(truncate(line, screen.width), toneOf(e.Kind)))
	}
	var rows []string
	if len(plugins) > 0 {
		rows = pluginTable(screen, plugins, now).lines()
		room := max(screen.height-len(top)-len(bottom)-1, 1) // one line is the head
		v.from = max(0, min(v.from, len(rows)-1-room))
		rows = append(rows[:1], rows[1+v.from:min(1+v.from+room, len(rows))]...)
	}
	lines := slices.Concat(top, rows, bottom)
	lines = lines[:min(len(lines), max(screen.height, 1))]
	return "\x1b[H" + strings.Join(lines, "\x1b[K\r\n") + "\x1b[K\x1b[J"
}

// summary is the first line.
func (v *topView) summary(screen terminal, plugins []client.Plugin) string {
	if v.err != nil && !errors.Is(v.err, context.Canceled) {
		return screen.paint(truncate("not up to date: "+escape(v.err.Error()), screen.width), bad)
	}
	counts := map[string]int{}
	for _, p := range plugins {
		counts[p.State]++
	}
	room := screen.width
	var line strings.Builder
	add := func(text string, is tone) {
		if room <= 0 {
			return // even nothing would be marked as cut
		}
		text = truncate(text, room)
		line.WriteString(screen.paint(text, is))
		room -= runewidth.StringWidth(text)
	}
	add(fmt.Sprintf("%d instances", len(plugins)), strong)
	for _, state := range slices.Sorted(maps.Keys(counts)) {
		add("  ", plain)
		add(fmt.Sprintf("%d %s", counts[state], escape(state)), toneOf(state))
	}
	return line.String()
}
