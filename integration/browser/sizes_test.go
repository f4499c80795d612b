package browser

import (
	"context"
	"flag"
	"fmt"
	"iter"
	"math"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"google.golang.org/protobuf/types/known/timestamppb"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/internal/daemon/page"
)

// screenshots is where TestScreenshot and TestSizes write what they see; empty for nowhere.
var (
	screenshots = flag.String("screenshots", "", "write pictures of the status page to this directory")
	shown       = flag.Bool("shown", false, "write only the pictures that the documentation shows")
)

// node is a daemon with so many plugins, every fourth of them refused, and some of what else there is.
type node struct {
	many
	plugins int
}

func (n node) Plugins() []*patchbayv1.Plugin {
	plugins := n.many.Plugins()[:n.plugins]
	for i, p := range plugins {
		p.Version, p.FirstSeen = "v1.4.2", timestamppb.New(time.Now().Add(-time.Duration(i+1)*time.Minute))
		if i%4 == 1 {
			p.State, p.Current, p.LastError = "refused", false, "user 1001 may not register plugins of type CSIPlugin: trust.types.CSIPlugin names users 0 and 998"
			p.Reason = "It may not be registered as it is; the last error says why."
			p.Health = &patchbayv1.Health{State: "attention", Since: p.FirstSeen, Reason: p.LastError,
				Remedy: "fix the cause; the plugin is retried automatically"}
		}
	}
	return plugins
}

func (n node) Launched() []*patchbayv1.LaunchedPlugin {
	if n.plugins == 0 {
		return nil
	}
	hour := timestamppb.New(time.Now().Add(-time.Hour))
	return []*patchbayv1.LaunchedPlugin{
		{Name: "cache", State: "running", Pid: 4711, Health: "serving", Since: hour, Metadata: map[string]string{"team": "storage"}},
		{Name: "indexer", State: "failed", Health: "unknown", Since: hour, Restarts: 10,
			LastError: "given up after 10 restarts within 10m0s: exit status 3; last stderr line: cannot find the flux",
			OverallHealth: &patchbayv1.Health{State: "attention", Since: hour,
				Reason: "given up after 10 restarts within 10m0s: exit status 3; last stderr line: cannot find the flux",
				Remedy: "read its log, fix the cause, and restart the plugin"}},
	}
}

func (n node) Conditions() []*patchbayv1.Condition {
	conditions := []*patchbayv1.Condition{{Name: "discovery", Status: "ok"}, {Name: "state", Status: "ok"}}
	if n.plugins == 300 {
		conditions[0] = &patchbayv1.Condition{Name: "discovery", Status: "degraded", Since: timestamppb.New(time.Now().Add(-90 * time.Second)),
			Message: "cannot read plugin directory /run/patchbay/plugins: permission denied; let user 998 read it"}
	}
	return conditions
}

func (n node) EventsOf(ptype, name string) []*patchbayv1.Event {
	return slices.DeleteFunc(n.LastEvents(math.MaxInt), func(e *patchbayv1.Event) bool { return e.GetType() != ptype || e.GetName() != name })
}

func (node) LastEvents(n int) []*patchbayv1.Event {
	at := func(minutes int) *timestamppb.Timestamp {
		return timestamppb.New(time.Now().Add(-time.Duration(minutes) * time.Minute))
	}
	events := []*patchbayv1.Event{
		{Seq: 1, Time: at(9), Kind: "registered", Type: "CSIPlugin", Name: "plugin-0000.example.com", Message: "registered"},
		{Seq: 2, Time: at(8), Kind: "refused", Type: "CSIPlugin", Name: "plugin-0001.example.com", Message: "user 1001 may not register plugins of type CSIPlugin"},
		{Seq: 3, Time: at(7), Kind: "failed", Name: "indexer", Message: "given up after 10 restarts within 10m0s: exit status 3"},
	}
	return events[max(0, len(events)-n):]
}

func (node) Log(_ context.Context, name string, _ int) (iter.Seq[*patchbayv1.LogRecord], error) {
	now := timestamppb.Now()
	return slices.Values([]*patchbayv1.LogRecord{
		{Seq: 1, Time: now, Message: name + " starts", Source: "stdout"},
		{Seq: 2, Time: now, Level: 8, Message: "cannot find the flux", Source: "stderr"},
	}), nil
}

// TestSizes looks at the page with few and many plugins, on a desk and in a hand, in the light and in the dark.
func TestSizes(t *testing.T) {
	for _, n := range []int{0, 3, 300, 5000} {
		server := httptest.NewServer(page.New(node{plugins: n}))
		b := open(t, server.URL)
		for _, scheme := range []string{"light", "dark"} {
			_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
			})
			if err != nil {
				t.Fatal(err)
			}
			for device, size := range map[string][2]int64{"desktop": {1200, 800}, "phone": {380, 800}} {
				b.do(chromedp.EmulateViewport(size[0], size[1]))
				b.do(chromedp.Navigate(server.URL + "/#/"))
				b.waits("document.querySelector('#about').innerText.startsWith('worker-1 · patchbay v1.2.0 · up 1 d')")
				b.waits(fmt.Sprintf("document.querySelector('#list tbody').rows.length == %d", min(n, 100)))
				b.fits(n, scheme, device, size)
				if b.is("[...document.querySelectorAll('#list td.path span')].some(s => { const lines = {}; " +
					"for (const r of s.getClientRects()) lines[r.top] = (lines[r.top] ?? 0) + r.width; return Object.values(lines).some(w => 0 < w && w < 24); })") {
					t.Errorf("%d plugins, %s: a path is wrapped within a name", n, device)
				}
				if n > 0 && !b.is("document.querySelector('#list tbody').rows[0].getBoundingClientRect().bottom < innerHeight && "+
					"document.querySelector('#list tbody').rows[0].innerText.includes('refused')") {
					t.Errorf("%d plugins, %s: what is refused is not on the first screen", n, device)
				}
				b.picture(fmt.Sprintf("status-page-%d-%s-%s.png", n, scheme, device))
				if n != 300 {
					continue
				}
				b.waits("document.title == '(75) Patchbay' && document.querySelector('#states').innerText.includes('75 attention')")
				b.do(chromedp.Navigate(server.URL + "/#/?health=attention"))
				b.waits("document.querySelector('#count').innerText == '75 of 300 instances' && " +
					"document.querySelector('#list tbody').rows[0].innerText.includes('→ fix the cause; the plugin is retried automatically')")
				for view, shows := range map[string]string{
					"launched": "#processes a", "daemon": "#health td", "events": "#timeline li", "plugin//indexer": "#records .error",
				} {
					b.do(chromedp.Navigate(server.URL + "/#/" + view))
					b.waits("document.querySelector('" + shows + "') != null && document.querySelector('" + shows + "').offsetParent != null")
					b.fits(n, scheme, device, size)
					b.picture(fmt.Sprintf("status-page-%s-%s-%s.png", filepath.Base(view), scheme, device))
				}
			}
		}
		shut(server)
	}
}

// fits reports a page that is wider than the screen.
func (b *browser) fits(n int, scheme, device string, size [2]int64) {
	b.t.Helper()
	if b.is(fmt.Sprintf("document.documentElement.scrollWidth > %d", size[0])) {
		b.t.Errorf("%d plugins, %s, %s: the page is wider than the screen", n, scheme, device)
	}
}

func (b *browser) picture(name string) {
	b.t.Helper()
	if *screenshots == "" || *shown && !slices.Contains(inDocs(b.t), name) {
		return
	}
	picture, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(filepath.Join(*screenshots, name), picture, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// inDocs returns the names of the pictures of the status page that the documentation shows.
func inDocs(t *testing.T) (names []string) {
	t.Helper()
	link := regexp.MustCompile(`images/(status-page[a-z0-9-]*\.png)\)`)
	pages, err := filepath.Glob("../../docs/*/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no documentation was found: %v", err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range link.FindAllSubmatch(text, -1) {
			names = append(names, string(found[1]))
		}
	}
	return names
}

// TestPictures: every picture of the page is one that the documentation shows, and the other way round.
func TestPictures(t *testing.T) {
	files, err := filepath.Glob("../../docs/images/status-page*.png")
	if err != nil {
		t.Fatal(err)
	}
	there := make([]string, len(files))
	for i, file := range files {
		there[i] = filepath.Base(file)
	}
	wanted := inDocs(t)
	slices.Sort(wanted)
	if len(wanted) == 0 || !slices.Equal(there, slices.Compact(wanted)) {
		t.Errorf("docs/images has %v, and the documentation shows %v: run make screenshot", there, wanted)
	}
}

// TestDaemonAndLaunched: with the keyboard alone from the list to a launched plugin and its log, and what the daemon is.
func TestDaemonAndLaunched(t *testing.T) {
	d := newDaemon(t)
	b := open(t, "http://"+d.addr+"/#/daemon")
	b.waits("document.querySelector('#daemon-about').innerText.includes('ExamplePlugin') && " +
		"document.querySelector('#daemon-about').innerText.includes('" + d.dir + "/plugins')")
	b.waits("document.querySelector('#health').innerText.includes('discovery')")
	b.do(chromedp.Navigate("http://" + d.addr + "/#/launched"))
	b.waits("document.querySelector('#processes').innerText.includes('talker')")
	b.do(chromedp.KeyEvent("j"), chromedp.KeyEvent("\r"))
	b.waits("document.querySelector('#records').innerText.includes('<b>it speaks</b>')")
	b.waits("document.querySelector('#instances').innerText.includes('pid ')")
	b.do(chromedp.KeyEvent("/"))
	b.waits("document.activeElement.id == 'search' && !document.querySelector('#plugins').hidden")
}
