package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mattn/go-runewidth"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
)

func TestTableIsCutToTheScreen(t *testing.T) {
	list := console.Table{Terminal: console.Terminal{Width: 40}, Head: []string{"NAME", "ENDPOINT", "AGE"}, Cuts: []int{1}}
	list.Add("漢字", strings.Repeat("/long", 20), "1s")
	list.Add("plain", "/short", "10d")
	lines := list.Lines()
	if len(lines) != 3 || lines[0][:4] != "NAME" {
		t.Fatalf("%q", lines)
	}
	for _, line := range lines {
		if width := runewidth.StringWidth(line); width > 40 {
			t.Errorf("%d cells: %q", width, line)
		}
	}
	if !strings.Contains(lines[1], "…") || strings.Contains(lines[2], "…") {
		t.Errorf("%q", lines)
	}
	at := func(line, part string) int {
		before, _, _ := strings.Cut(line, part)
		return runewidth.StringWidth(before)
	}
	if at(lines[1], "1s") != at(lines[2], "10d") {
		t.Errorf("not aligned: %q", lines)
	}
	list.Terminal = console.Terminal{}
	if whole := list.Lines()[1]; strings.Contains(whole, "…") {
		t.Errorf("cut where there is no screen: %q", whole)
	}
}

func TestPaint(t *testing.T) {
	if got := (console.Terminal{Colour: true}).Paint("x", console.Bad); got != "\x1b[31mx\x1b[0m" {
		t.Errorf("%q", got)
	}
	if got := (console.Terminal{}).Paint("x", console.Bad); got != "x" {
		t.Errorf("%q", got)
	}
}

func TestTopFitsTheScreen(t *testing.T) {
	v := &topView{listing: &patchbayv1.ListPluginsResponse{}}
	for range 50 {
		v.listing.Plugins = append(v.listing.Plugins, &patchbayv1.Plugin{Type: "T", Name: "well", State: "registered", Endpoint: strings.Repeat("/e", 99)})
	}
	v.listing.Plugins = append(v.listing.Plugins, &patchbayv1.Plugin{Type: "T", Name: "sick\x1b[2J", State: "backoff"})
	for range topEvents {
		v.events = append(v.events, &patchbayv1.Event{Kind: "registered", Type: "T", Name: "well", Message: strings.Repeat("long ", 50)})
	}
	for _, height := range []int{1, 3, 8, 24, 100} {
		screen := console.Terminal{Width: 60, Height: height}
		drawn := v.draw(screen, time.Now())
		lines := strings.Split(drawn, "\r\n")
		if len(lines) > height {
			t.Errorf("%d lines on a screen of %d", len(lines), height)
		}
		for _, line := range lines {
			line = strings.NewReplacer("\x1b[H", "", "\x1b[K", "", "\x1b[J", "").Replace(line)
			if strings.Contains(line, "\x1b") || runewidth.StringWidth(line) > 60 {
				t.Errorf("line %q", line)
			}
		}
	}
	drawn := v.draw(console.Terminal{Width: 60, Height: 24}, time.Now())
	if sick, well := strings.Index(drawn, "sick"), strings.Index(drawn, "well"); sick < 0 || sick > well {
		t.Errorf("what is not well does not come first:\n%s", drawn)
	}
	for range 100 {
		v.press("\x1b[6~")
		drawn = v.draw(console.Terminal{Width: 60, Height: 24}, time.Now())
	}
	if strings.Contains(drawn, "sick") || !strings.Contains(drawn, "well") {
		t.Errorf("scrolled to the end:\n%s", drawn)
	}
}

// TestCutKey takes apart what comes in one read.
func TestCutKey(t *testing.T) {
	var keys []string
	for typed := "qä\x1b[5~\x1b[Aj\x1b[5"; typed != ""; {
		var key string
		key, typed = cutKey(typed)
		keys = append(keys, key)
	}
	if got := strings.Join(keys, " "); got != "q ä \x1b[5~ \x1b[A j \x1b[5" {
		t.Errorf("%q", keys)
	}
}

// TestTopKeys presses keys and compares the screen and the commands that are run.
func TestTopKeys(t *testing.T) {
	v := &topView{listing: &patchbayv1.ListPluginsResponse{Plugins: []*patchbayv1.Plugin{
		{Type: "T", Name: "one", State: "registered", Source: "launched", Endpoint: "/run/one.sock"},
		{Type: "T", Name: "two", State: "refused", Source: "discovered"},
		{
			Type: "T", Name: "three", State: "registered", Source: "discovered", Roles: []string{"role"}, Metadata: map[string]string{"team": "a"},
		},
		{SocketPath: "/run/new.sock", State: "ignored", LastError: "no \x1b[2J"},
	}}}
	for i, step := range []struct {
		keys           []string
		run            string // the command; "quit" to quit
		shows, without string
	}{
		{nil, "", "> T      two", ""},
		{[]string{"?"}, "help top", "> T      two", ""},
		{[]string{"\r"}, "status -- T/two", "> T      two", ""},
		{[]string{"l"}, "", "the daemon did not launch this plugin", ""},
		{[]string{"j"}, "", "> T      one", "launch"},
		{[]string{"l"}, "logs --tail 500 -- T/one", "> T      one", ""},
		{[]string{"R"}, "", "restart T/one? y", ""},
		{[]string{"n"}, "", "?: help", "restart"},
		{[]string{"R", "y"}, "restart -- T/one", "?: help", ""},
		{[]string{"/", "t", "h", "x", "\x7f", "\x1b[A"}, "", "/th_", "one"},
		{[]string{"\r"}, "", "filter: th", "two"},
		{[]string{"j", "j"}, "", "> T      three", "one"},
		{[]string{"/", "zz", "\r", "\r", "R"}, "", "", "three"},
		{[]string{"\x1b"}, "", "> T      two", ""},
		{[]string{"/", "registered", " ", "!th", "\r"}, "", "> T      one", "three"},
		{[]string{"\x1b", "/", "team=a", " ", "role/", " ", "!", "\r"}, "", "> T      three", "two"},
		{[]string{"\x1b"}, "", "> T      two", ""},
		{[]string{"/", "ignored", "\r", "\r"}, "", `no \x1b[2J`, "two"},
		{[]string{"\x1b"}, "", "> T      two", ""},
		{[]string{"\x1b"}, "quit", "", ""},
		{[]string{"\x03"}, "quit", "", ""},
	} {
		var run []string
		for _, key := range step.keys {
			var quit bool
			if run, quit = v.press(key); quit {
				run = []string{"quit"}
			}
		}
		drawn := v.draw(console.Terminal{Width: 80, Height: 24}, time.Now())
		if strings.Join(run, " ") != step.run || !strings.Contains(drawn, step.shows) || step.without != "" && strings.Contains(drawn, step.without) {
			t.Errorf("step %d, %q: runs %q, and shows\n%s", i, step.keys, run, drawn)
		}
	}
}

// TestTopRestartsThePluginAsked changes the order of the plugins between the question and the answer.
func TestTopRestartsThePluginAsked(t *testing.T) {
	one := &patchbayv1.Plugin{Type: "T", Name: "one", State: "registered", Source: "launched"}
	two := &patchbayv1.Plugin{Type: "T", Name: "two", State: "registered", Source: "launched"}
	v := &topView{listing: &patchbayv1.ListPluginsResponse{Plugins: []*patchbayv1.Plugin{one, two}}}
	v.press("R")
	two.State = "failed"
	if drawn := v.draw(console.Terminal{Width: 80, Height: 24}, time.Now()); !strings.Contains(drawn, "restart T/one? y") {
		t.Errorf("shows\n%s", drawn)
	}
	if run, _ := v.press("y"); strings.Join(run, " ") != "restart -- T/one" {
		t.Errorf("runs %q", run)
	}
}

// TestNamesAreCutLast: on a narrow screen two plugins can still be told from each other.
func TestNamesAreCutLast(t *testing.T) {
	var plugins []*patchbayv1.Plugin
	for i := range 3 {
		plugins = append(plugins, &patchbayv1.Plugin{
			Type: "CSIPlugin", Name: fmt.Sprintf("a-rather-long-name-of-a-disk-driver-%d.csi.example.com", i), Version: "1.0.0",
			State: "registered", Endpoint: "/var/lib/kubelet/plugins/a/csi.sock",
		})
	}
	for width, want := range map[int]string{
		0:   "CSIPlugin   a-rather-long-name-of-a-disk-driver-1.csi.example.com   1.0.0     registered   /var/lib/kubelet/plugins/a/csi.sock   -",
		110: "CSIPlugin   a-rather-long-name-of-a-disk-driver-1.csi.example.com   1.0.0     registered   /var/lib/kub…   -",
		90:  "CSIPlugin   a-rather-long-name-of-a-disk-driver-1.csi.example.com   registered   -",
		80:  "a-rather-long-name-of-a-disk-driver-1.csi.example.com   registered   -",
		60:  "a-rather-long-name-o…er-1.csi.example.com   registered   -",
		40:  "a-rather-l…xample.com   registered   -",
	} {
		lines := pluginTable(console.Terminal{Width: width}, plugins, time.Now()).Lines()
		if got := strings.TrimRight(lines[2], " "); got != want {
			t.Errorf("%d columns:\ngot  %q\nwant %q", width, got, want)
		}
	}
}

// TestTopOnANarrowScreen has more states than fit into a line: it must not take two.
func TestTopOnANarrowScreen(t *testing.T) {
	v := &topView{listing: &patchbayv1.ListPluginsResponse{}}
	for _, state := range []string{"registered", "backoff", "unreachable", "refused", "validating", "superseded"} {
		v.listing.Plugins = append(v.listing.Plugins, &patchbayv1.Plugin{Type: "T", Name: state, State: state})
	}
	for _, width := range []int{100, 30, 12, 1} {
		summary := v.summary(console.Terminal{Width: width})
		if got := runewidth.StringWidth(summary); got > width || summary == "" {
			t.Errorf("on a screen of %d cells the first line has %d: %q", width, got, summary)
		}
	}
	if summary := v.summary(console.Terminal{Width: 200}); !strings.HasSuffix(summary, "  1 validating") {
		t.Errorf("%q", summary)
	}
}
