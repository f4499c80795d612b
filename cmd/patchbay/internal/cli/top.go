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
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
)

const (
	// topEvery is the time between two updates of the screen without an event: ages grow, and some states have no events.
	topEvery = 2 * time.Second
	// topDelay is the time from an event to the update of the screen, to combine many events.
	topDelay = 100 * time.Millisecond
	// topEvents is how many of the last events are shown.
	topEvents = 5
	// topLog is how many of the last records of a log are shown.
	topLog = "500"
	// topPage is how many lines Page Up and Page Down move.
	topPage = 10
)

func newTopCommand(paths command.Paths) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the plugins live",
		Long: `Show all plugins and the last events, updated as they change, until q or Ctrl-C.

It needs a terminal. Use "patchbay list" or "patchbay events --follow" elsewhere.

Plugins with problems come first.

  up, down, j, k     move; Page Up, Page Down and space move by ten
  /                  filter: show plugins with each word in their type, roles, name, version, state or labels,
                     and without each word after a "!"; Escape clears the filter
  Enter              show the plugin in detail, as "patchbay status" does
  l                  show the output of a launched plugin, as "patchbay logs" does
  R                  restart a launched plugin without downtime
  ?                  show this help
  q, Escape          quit`,
		Example: `  patchbay top`,
	}
	socket := command.AddControlSocket(cmd, paths)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if !console.IsTerminal(cmd.OutOrStdout()) || !console.IsTerminal(os.Stdin) {
			return command.WrongUsage(cmd, `"patchbay top" needs a terminal: use "patchbay list" or "patchbay events --follow"`)
		}
		return nil
	}
	cmd.RunE = socket.Ask(0, func(ctx context.Context, c *client.Client, cmd *cobra.Command, _ []string) error {
		first, err := c.List(ctx) // print an error before the screen is switched
		if err != nil {
			return err
		}
		v := &topView{listing: first}
		return v.run(ctx, c, cmd, readKeys(os.Stdin))
	})
	return cmd
}

// openScreen switches to the alternate screen and to single keys from standard input, until closeScreen is called.
func openScreen(out io.Writer) (closeScreen func(), err error) {
	before, err := term.MakeRaw(int(os.Stdin.Fd()))
	if err != nil {
		return func() {}, fmt.Errorf("cannot read single keys from the terminal: %w", err)
	}
	fmt.Fprint(out, "\x1b[?1049h\x1b[?25l") // and hide the cursor
	return func() {
		fmt.Fprint(out, "\x1b[?25h\x1b[?1049l")
		_ = term.Restore(int(os.Stdin.Fd()), before)
	}, nil
}

// readKeys returns the keys that are typed, until r ends. Its goroutine blocks in a read that cannot be interrupted, and ends with the
// process.
func readKeys(r io.Reader) <-chan string {
	keys := make(chan string)
	go func() {
		defer close(keys)
		b := make([]byte, 64)
		for {
			n, err := r.Read(b)
			for rest := string(b[:n]); rest != ""; {
				var key string
				key, rest = cutKey(rest)
				keys <- key
			}
			if err != nil {
				return
			}
		}
	}()
	return keys
}

// cutKey splits off the first key: a character, or the escape sequence of a key such as an arrow.
func cutKey(typed string) (key, rest string) {
	_, size := utf8.DecodeRuneInString(typed)
	if strings.HasPrefix(typed, "\x1b[") {
		end := strings.IndexFunc(typed[2:], func(r rune) bool { return r >= '@' && r <= '~' })
		size = 2 + end + 1
		if end < 0 {
			size = len(typed)
		}
	}
	return typed[:size], typed[size:]
}

// topMode determines the meaning of keys.
type topMode int

const (
	topList    topMode = iota // the list of plugins
	topFilter                 // input of the filter
	topConfirm                // a question whether to restart a plugin
)

// topView is the state of the screen. Keys and updates from the daemon change it.
type topView struct {
	listing *patchbayv1.ListPluginsResponse // nil before the first one
	events  []*patchbayv1.Event
	err     error  // of the last update
	notice  string // the result of the last key

	mode     topMode
	asked    string // the plugin that topConfirm is about
	filter   string
	selected int // index among the plugins that are shown
	from     int // the first line that is shown
}

func (v *topView) run(ctx context.Context, c *client.Client, cmd *cobra.Command, keys <-chan string) error {
	var following sync.WaitGroup
	defer following.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := cmd.OutOrStdout()
	closeScreen, err := openScreen(out)
	defer closeScreen()
	news := make(chan followed)
	following.Go(func() { follow(ctx, c, topEvents, nil, news) })
	renew := time.NewTimer(0)
	defer renew.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return nil
		case key, ok := <-keys:
			args, quit := v.press(key)
			if quit || !ok {
				return nil
			}
			if len(args) > 0 {
				closeScreen()
				runFromTop(ctx, cmd, args, keys)
				if _, err = openScreen(out); err != nil {
					return err
				}
			}
		case n := <-news:
			if n.err == nil {
				v.events = append(v.events, n.event)
				v.events = v.events[max(len(v.events)-topEvents, 0):]
			}
			renew.Reset(topDelay)
			continue
		case <-renew.C:
			listing, err := listNow(ctx, c)
			if v.err = err; err == nil {
				v.listing = listing
			}
			renew.Reset(topEvery)
		}
		screen := console.TerminalOf(out)
		if screen.Width == 0 || screen.Height == 0 { // unknown for a serial line
			screen.Width, screen.Height = 80, 24
		}
		if _, err = io.WriteString(out, v.draw(screen, time.Now())); err != nil {
			err = fmt.Errorf("cannot write the output: %w", err)
		}
	}
	return err
}

// runFromTop runs another command with the daemon of top, and waits for a key.
func runFromTop(ctx context.Context, top *cobra.Command, args []string, keys <-chan string) {
	out := top.OutOrStdout()
	if socket := top.Flags().Lookup("control-socket"); socket.Changed && args[0] != "help" {
		args = slices.Insert(args, 1, "--control-socket", socket.Value.String())
	}
	_ = Run(ctx, args, out, out) // it has written its error
	fmt.Fprint(out, "\npress Enter to go back ")
	select {
	case <-keys:
	case <-ctx.Done():
	}
}

func listNow(ctx context.Context, c *client.Client) (*patchbayv1.ListPluginsResponse, error) {
	ctx, cancel := command.AnswerInTime(ctx)
	defer cancel()
	return c.List(ctx)
}

// moves are the keys that move through lines.
var moves = map[string]int{
	"k": -1, "\x1b[A": -1, "j": 1, "\x1b[B": 1, "\x1b[5~": -topPage, "\x1b[6~": topPage, " ": topPage,
}

// press handles a key. It returns the arguments of a command to run, if any.
func (v *topView) press(key string) (run []string, quit bool) {
	v.notice = ""
	p := v.current()
	id := command.PluginID(p.GetType(), p.GetName())
	by, isMove := moves[key]
	switch {
	case key == "\x03":
		return nil, true
	case v.mode == topFilter:
		v.typed(key)
	case v.mode == topConfirm:
		if v.mode = topList; key == "y" {
			return []string{"restart", "--", v.asked}, false
		}
	case isMove:
		v.selected = max(0, v.selected+by)
	case (key == "l" || key == "R") && p.GetSource() != "launched":
		v.notice = "the daemon did not launch this plugin"
	case key == "l":
		return []string{"logs", "--tail", topLog, "--", id}, false
	case key == "R":
		v.mode, v.asked = topConfirm, id
	case key == "q" || key == "\x1b" && v.filter == "":
		return nil, true
	case key == "\x1b":
		v.filter = ""
	case key == "/":
		v.mode = topFilter
	case key == "?":
		return []string{"help", "top"}, false
	case key == "\r" && p.GetName() != "":
		return []string{"status", "--", id}, false
	case key == "\r":
		v.notice = cmp.Or(p.GetLastError(), p.GetReason()) // of a socket whose plugin is not known
	}
	return nil, false
}

func (v *topView) typed(key string) {
	switch {
	case key == "\r":
		v.mode = topList
	case key == "\x1b":
		v.mode, v.filter = topList, ""
	case key == "\x7f" || key == "\b":
		_, size := utf8.DecodeLastRuneInString(v.filter)
		v.filter = v.filter[:len(v.filter)-size]
	case !strings.ContainsFunc(key, func(r rune) bool { return !unicode.IsPrint(r) }):
		v.filter += key
	}
	v.selected = 0
}

// current returns the selected plugin; nil if none is shown.
func (v *topView) current() *patchbayv1.Plugin {
	if shown := v.shown(); len(shown) > 0 {
		return shown[v.at(shown)]
	}
	return nil
}

func (v *topView) at(shown []*patchbayv1.Plugin) int { return max(0, min(v.selected, len(shown)-1)) }

// shown returns the plugins that match the filter, those with problems first.
func (v *topView) shown() []*patchbayv1.Plugin {
	words := strings.Fields(strings.ToLower(v.filter))
	plugins := slices.DeleteFunc(slices.Clone(v.listing.GetPlugins()), func(p *patchbayv1.Plugin) bool {
		text := []string{p.Type + "/" + p.Name, p.State, p.Version}
		for _, role := range p.Roles {
			text = append(text, role+"/"+p.Name)
		}
		for key, value := range p.Metadata {
			text = append(text, key+"="+value)
		}
		all := strings.ToLower(strings.Join(text, " "))
		return slices.ContainsFunc(words, func(word string) bool {
			word, without := strings.CutPrefix(word, "!")
			return strings.Contains(all, word) == without && word != ""
		})
	})
	rank := map[console.Tone]int{console.Bad: 0, console.Busy: 1, console.Good: 2, console.Faint: 3}
	slices.SortStableFunc(plugins, func(a, b *patchbayv1.Plugin) int {
		return cmp.Compare(rank[console.ToneOf(a.State)], rank[console.ToneOf(b.State)])
	})
	return plugins
}

func (v *topView) draw(screen console.Terminal, now time.Time) string {
	top := []string{v.summary(screen)}
	for _, c := range v.listing.GetConditions() {
		if c.Status != "ok" {
			top = append(top, screen.Paint(console.Truncate(console.Escape(c.Name)+": "+console.Escape(c.Message), screen.Width), console.Bad))
		}
	}
	top = append(top, console.Truncate(v.prompt(), screen.Width))
	var bottom []string
	if len(v.events) > 0 {
		bottom = append(bottom, "")
	}
	for _, e := range v.events {
		line := fmt.Sprintf("%s  %-12s  %s  %s", e.Time.AsTime().Local().Format("15:04:05"), console.Escape(e.Kind),
			command.PluginID(e.Type, e.Name), console.Escape(e.Message))
		bottom = append(bottom, screen.Paint(console.Truncate(line, screen.Width), console.ToneOf(e.Kind)))
	}
	rows := v.rows(screen, max(screen.Height-len(top)-len(bottom), 2), now)
	lines := slices.Concat(top, rows, bottom)
	lines = lines[:min(len(lines), max(screen.Height, 1))]
	return "\x1b[H" + strings.Join(lines, "\x1b[K\r\n") + "\x1b[K\x1b[J"
}

// prompt is the line above the plugins.
func (v *topView) prompt() string {
	switch {
	case v.mode == topFilter:
		return "/" + console.Escape(v.filter) + "_"
	case v.mode == topConfirm:
		return "restart " + v.asked + "? y restarts it, any other key goes back"
	case v.notice != "":
		return console.Escape(v.notice)
	case v.filter != "":
		return "filter: " + console.Escape(v.filter)
	}
	return "?: help"
}

func (v *topView) rows(screen console.Terminal, room int, now time.Time) []string {
	plugins := v.shown()
	if len(plugins) == 0 {
		return nil
	}
	rows := pluginTable(console.Terminal{Colour: screen.Colour, Width: max(screen.Width-2, 1)}, plugins, now).Lines()
	v.selected = v.at(plugins)
	room = max(room-1, 1) // one line is the head
	v.from = max(0, min(v.from, len(plugins)-room))
	v.from = min(max(v.from, v.selected-room+1), v.selected)
	for i := range rows {
		mark := "  "
		if i == v.selected+1 {
			mark = "> "
		}
		rows[i] = mark + rows[i]
	}
	return append(rows[:1:1], rows[1+v.from:min(1+v.from+room, len(rows))]...)
}

// summary is the first line.
func (v *topView) summary(screen console.Terminal) string {
	if v.err != nil && !errors.Is(v.err, context.Canceled) {
		return screen.Paint(console.Truncate("not up to date: "+console.Escape(v.err.Error()), screen.Width), console.Bad)
	}
	counts := map[string]int{}
	for _, p := range v.listing.GetPlugins() {
		counts[p.State]++
	}
	line := fmt.Sprintf("%d instances", len(v.listing.GetPlugins()))
	for _, state := range slices.Sorted(maps.Keys(counts)) {
		line += fmt.Sprintf("  %d %s", counts[state], console.Escape(state))
	}
	return screen.Paint(console.Truncate(line, screen.Width), console.Strong)
}
