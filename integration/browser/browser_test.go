package browser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/patchbay-dev/patchbay/integration/internal/programs"
	"github.com/patchbay-dev/patchbay/internal/daemon/page"
)

const patience = 2 * time.Minute

var bin string // where the programs are that the tests run

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if bin, err = os.MkdirTemp("", "patchbay-browser"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(bin)
	ctx := context.Background()
	patchbay, plugin := programs.Build(ctx, "../..", bin, false, "./cmd/patchbay"), programs.Build(ctx, "../../examples", bin, false, "./plugin")
	if err := errors.Join(patchbay, plugin); err != nil {
		fmt.Fprintln(os.Stderr, "cannot build what is to be tested:", err)
		return 1
	}
	return m.Run()
}

// daemon is a running "patchbay run" in a directory of its own.
type daemon struct {
	t    *testing.T
	dir  string
	addr string
	cmd  *exec.Cmd
	// more are further plugins of its catalogue.
	more string
}

func newDaemon(t *testing.T, more ...string) *daemon {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, dir: dir, addr: addr, more: strings.Join(more, "")}
	t.Cleanup(func() { d.end(syscall.SIGTERM); os.RemoveAll(dir) })
	d.start()
	return d
}

func (d *daemon) start() {
	d.t.Helper()
	d.cmd = exec.CommandContext(context.Background(), filepath.Join(bin, "patchbay"), "run", "--plugin-dir", filepath.Join(d.dir, "plugins"),
		"--state", filepath.Join(d.dir, "state.db"), "--control-socket", filepath.Join(d.dir, "control.sock"), "--http", d.addr,
		"--accept-type", "ExamplePlugin", "--config", d.config())
	log, err := os.OpenFile(filepath.Join(d.dir, "daemon.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	d.cmd.Stderr = log
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	deadline := time.Now().Add(patience)
	for {
		response, err := http.Get("http://" + d.addr + "/readyz")
		if err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("the daemon does not become ready: %v", err)
		}
		time.Sleep(20 * time.Millisecond) // a process of its own cannot tell this one
	}
}

// config returns a configuration with a launched plugin.
func (d *daemon) config() string {
	path := filepath.Join(d.dir, "patchbay.yaml")
	text := "apiVersion: patchbay.dev/v1alpha1\nkind: Config\nplugins:\n- name: talker\n  serve: false\n" +
		"  command: [/bin/sh, -c, \"echo '<b>it speaks</b>'; exec sleep 1000\"]\n" + d.more
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
	return path
}

func (d *daemon) end(with os.Signal) {
	if d.cmd.ProcessState == nil {
		_ = d.cmd.Process.Signal(with)
		_ = d.cmd.Wait()
	}
}

// plugin starts a plugin, which ends with the test or when stop is called.
func (d *daemon) plugin(file, ptype, name string) (stop func()) {
	d.t.Helper()
	cmd := exec.CommandContext(context.Background(), filepath.Join(bin, "plugin"), filepath.Join(d.dir, "plugins", file), ptype, name)
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	stop = func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		}
	}
	d.t.Cleanup(stop)
	return stop
}

// browser is a tab of a browser.
type browser struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // chromedp keeps its tab in it
	// said is what the page's script complained of.
	said chan string
}

func open(t *testing.T, url string) *browser {
	t.Helper()
	path, err := find()
	if err != nil {
		t.Skip(err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.WindowSize(1200, 800))
	allocator, cancelAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(func() { cancel(); cancelAllocator() })
	b := &browser{t: t, ctx: ctx, said: make(chan string, 100)}
	err = chromedp.Listen(ctx, func(e any) {
		if e, ok := e.(*runtime.EventExceptionThrown); ok {
			b.said <- fmt.Sprintf("%+v", e.ExceptionDetails)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.Navigate(url))
	t.Cleanup(func() {
		select {
		case s := <-b.said:
			t.Errorf("the page's script failed: %s", s)
		default:
		}
	})
	return b
}

func find() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("NOT TESTED: Chromium is missing; install it, as make test does as root on Debian")
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 2*patience)
	defer cancel()
	for _, action := range actions {
		err := chromedp.Do(ctx, action)
		for isReplaced(err) && ctx.Err() == nil {
			err = chromedp.Do(ctx, action)
		}
		if err != nil {
			b.t.Fatal(err)
		}
	}
}

// isReplaced reports whether an action failed because the page replaced the element after it was found and before anything was done
// with it, as it may with each event that it shows.
func isReplaced(err error) bool {
	var failed *cdproto.Error
	return errors.As(err, &failed) && strings.Contains(failed.Message, "Could not find node with given id")
}

// waits waits until an expression of the page is true.
func (b *browser) waits(expression string) {
	b.t.Helper()
	_, err := chromedp.Run(b.ctx, chromedp.Poll[bool](expression, chromedp.WithPollingTimeout(patience),
		chromedp.WithPollingInterval(50*time.Millisecond)))
	if err != nil {
		text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.body.innerText"))
		b.t.Fatalf("not true: %s: %v; the page says:\n%s", expression, err, text)
	}
}

func (b *browser) is(expression string) bool {
	b.t.Helper()
	is, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](expression))
	if err != nil {
		b.t.Fatal(err)
	}
	return is
}

const table = "document.querySelector('#list tbody').innerText"

func TestPluginsAppearAndChangeLive(t *testing.T) {
	d := newDaemon(t)
	b := open(t, "http://"+d.addr+"/")
	b.waits("document.querySelector('#connection').innerText == 'Live'")
	stop := d.plugin("a.sock", "ExamplePlugin", "alpha")
	b.waits(table + ".includes('alpha') && " + table + ".includes('registered')")
	d.plugin("b.sock", "OtherType", "beta")
	b.waits(table + ".includes('beta') && " + table + ".includes('refused') && " + table + ".includes('no handler registered')")
	stop()
	b.waits("!" + table + ".includes('alpha')")

	b.do(chromedp.SendKeys("#search", "nothing like it"))
	b.waits("document.querySelector('#list tbody').rows.length == 0")
	b.do(chromedp.KeyEvent("\x1b"))
	b.waits("document.querySelector('#list tbody').rows.length == 2")

	b.do(chromedp.Navigate("http://" + d.addr + "/#/events"))
	b.waits("document.querySelector('#timeline').innerText.includes('deregistered')")
}

func TestOnePlugin(t *testing.T) {
	d := newDaemon(t)
	d.plugin("a.sock", "ExamplePlugin", "alpha")
	b := open(t, "http://"+d.addr+"/")
	// Those that are not well, or not yet, come first.
	b.waits(table + ".includes('registered') && " + table + ".includes('running')")
	// With the keyboard alone.
	b.do(chromedp.KeyEvent("j"), chromedp.KeyEvent("\r"))
	b.waits("location.hash == '#/plugin/ExamplePlugin/alpha'")
	b.waits("document.querySelector('#instances').innerText.includes('a.sock')")
	b.waits("document.querySelector('#history').innerText.includes('registered')")

	if !b.is("document.title == 'ExamplePlugin/alpha · Patchbay'") {
		t.Error("the title does not say what is shown")
	}
	b.waits("/UTC|GMT|[A-Z]{2,4}/.test(document.querySelector('#history time').innerText)")

	b.do(chromedp.Navigate("http://" + d.addr + "/#/plugin//talker"))
	b.waits("document.querySelector('#records').innerText.includes('<b>it speaks</b>')")
	if b.is("document.querySelectorAll('#records b').length > 0") {
		t.Error("what a plugin prints is taken for markup")
	}
}

func TestTheDaemonIsRestarted(t *testing.T) {
	d := newDaemon(t)
	d.plugin("a.sock", "ExamplePlugin", "alpha")
	b := open(t, "http://"+d.addr+"/")
	b.waits(table + ".includes('alpha')")
	d.end(syscall.SIGKILL)
	b.waits("document.querySelector('#connection').innerText.startsWith('Not connected')")
	d.start()
	b.waits("document.querySelector('#connection').innerText == 'Live'")
	b.waits(table + ".includes('alpha') && " + table + ".includes('registered')")
}

func TestHostileNames(t *testing.T) {
	d := newDaemon(t)
	for i, name := range []string{
		"<img src=x onerror=document.title='hacked'>", "\"><script>document.title='hacked'</script>", "__proto__", "../../etc", "%2e%2e%2f#/x",
		strings.Repeat("long", 900), "\u202etxt.exe",
	} {
		d.plugin(fmt.Sprint(i, ".sock"), "ExamplePlugin", name)
	}
	b := open(t, "http://"+d.addr+"/")
	b.waits("document.querySelectorAll('#list tbody a').length == 8") // with the one that is launched
	if b.is("document.body.innerText.includes('\u202e')") {
		t.Error("a name turns the direction of the text")
	}
	if b.is("document.title != 'Patchbay' || document.querySelectorAll('main img, main script').length > 0") {
		t.Error("a name is taken for markup")
	}
	for i := range 8 {
		b.do(chromedp.Navigate("http://" + d.addr + "/#/"))
		b.waits("document.querySelectorAll('#list tbody a').length == 8")
		b.do(chromedp.Evaluate[chromedp.Void](fmt.Sprintf("document.querySelectorAll('#list tbody a')[%d].click()", i)))
		b.waits("document.querySelector('#instances').innerText.includes('Instance 1 of 1')")
	}
	if b.is("document.title == 'hacked' || !document.title.endsWith(' · Patchbay')") {
		t.Error("a name is taken for markup")
	}
}

func TestNarrowAndDark(t *testing.T) {
	d := newDaemon(t)
	d.plugin("a.sock", "ExamplePlugin", strings.Repeat("a-rather-long-name-", 5))
	b := open(t, "http://"+d.addr+"/")
	b.do(chromedp.EmulateViewport(320, 600))
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.waits(table + ".includes('a-rather')")
	if b.is("document.documentElement.scrollWidth > 320") {
		t.Error("the page is wider than a narrow screen")
	}
	if b.is("getComputedStyle(document.body).backgroundColor == 'rgb(255, 255, 255)'") {
		t.Error("it is not dark in the dark")
	}
}

func TestScreenshot(t *testing.T) {
	if *screenshots == "" {
		t.Skip("nobody wants one: use -screenshots DIR")
	}
	d := newDaemon(t)
	d.plugin("a.sock", "ExamplePlugin", "alpha.example.com")
	d.plugin("a2.sock", "ExamplePlugin", "alpha.example.com")
	d.plugin("b.sock", "ExamplePlugin", "beta.example.com")
	d.plugin("c.sock", "OtherType", "gamma.example.com")
	b := open(t, "http://"+d.addr+"/")
	b.waits("document.querySelector('#list tbody').rows.length >= 4")
	b.do(chromedp.EmulateViewport(1100, 420))
	b.picture("status-page.png")
	b.do(chromedp.EmulateViewport(380, 800))
	b.picture("status-page-phone.png")
}

// TestAddress: what is shown is in the address, and an address shows it.
func TestAddress(t *testing.T) {
	d := newDaemon(t)
	d.plugin("a.sock", "ExamplePlugin", "alpha")
	d.plugin("b.sock", "OtherType", "beta")
	b := open(t, "http://"+d.addr+"/")
	b.waits(table + ".includes('refused') && " + table + ".includes('registered')")
	if !b.is("document.querySelector('#list tbody').rows[0].innerText.includes('beta')") {
		t.Error("what is not well does not come first")
	}
	b.waits("document.querySelector('#states').innerText.replace(/\\s+/g, ' ').includes('1 refused')")
	b.do(chromedp.Click("#states a[href='#/?state=refused']"))
	b.waits("document.querySelector('#list tbody').rows.length == 1 && location.hash == '#/?state=refused'")
	b.do(chromedp.Navigate("about:blank"), chromedp.Navigate("http://"+d.addr+"/#/?q=alpha&sort=-name"))
	b.waits("document.querySelector('#list tbody').rows.length == 1 && " + table + ".includes('alpha') && document.querySelector('#search').value == 'alpha'")
	b.waits("document.querySelector('th[data-key=name]').getAttribute('aria-sort') == 'descending'")
	b.do(chromedp.Navigate("http://" + d.addr + "/#/?q=!alpha+!running"))
	b.waits("document.querySelector('#list tbody').rows.length == 1 && " + table + ".includes('beta')")
	b.do(chromedp.Navigate("http://" + d.addr + "/#/?type=Nothing&state=%00<&page=-7&sort=__proto__"))
	b.waits("document.querySelector('#empty').innerText.includes('No plugin matches')")
	b.do(chromedp.Navigate("http://" + d.addr + "/#/events?kind=refused"))
	b.waits("document.querySelector('#timeline').innerText.includes('beta') && !document.querySelector('#timeline').innerText.includes('alpha')")
}

// shut ends a server, also of a page that is still open.
func shut(s *httptest.Server) {
	_ = s.Listener.Close() // the page connects again at once
	s.CloseClientConnections()
	s.Close()
}

// TestAllEvents: a plugin's page has all of its events that the daemon keeps, however many others came since.
func TestAllEvents(t *testing.T) {
	server := httptest.NewServer(page.New(busy{}))
	defer shut(server)
	b := open(t, server.URL+"/#/plugin/T/rare")
	b.waits("document.querySelectorAll('#history li').length == 2 && document.querySelector('#history').innerText.includes('the first')")
	b.do(chromedp.Navigate(server.URL + "/#/events"))
	b.waits("document.querySelectorAll('#timeline li').length == 100 && document.querySelector('#event-page').innerText.startsWith('Page 1 of')")
	b.do(chromedp.Click("#event-next"))
	b.waits("document.querySelector('#event-page').innerText.startsWith('Page 2 of') && location.hash == '#/events?page=2'")
}

// TestNothingThere says what to do.
func TestNothingThere(t *testing.T) {
	server := httptest.NewServer(page.New(none{}))
	defer shut(server)
	b := open(t, server.URL)
	b.waits("document.querySelector('#empty').innerText.includes('No plugin is here yet') && document.querySelector('#list').hidden")
}

func TestFleet(t *testing.T) {
	server := httptest.NewServer(page.New(manyNodes{}))
	defer shut(server)
	b := open(t, server.URL)
	b.waits("!document.querySelector('nav a[data-view=fleet]').hidden")
	b.do(chromedp.Click("nav a[data-view=fleet]"))
	b.waits("document.querySelector('#nodes tbody').rows.length == 100")
	b.waits("document.querySelector('#nodes tbody').rows[0].innerText.includes('node-777')")
	b.do(chromedp.Click("#node-pager button:last-child"))
	b.waits("document.querySelector('#node-pager').innerText.includes('Page 2 of 10') && location.hash == '#/fleet?page=2' && " +
		"document.querySelector('#nodes tbody').rows[0].innerText.includes('node-099')")
	b.do(chromedp.KeyEvent("/"))
	b.waits("document.activeElement.id == 'node-search'")
	b.do(chromedp.KeyEvent("\x1b"), chromedp.SendKeys("#node-search", "node-12"))
	b.waits("document.querySelector('#nodes tbody').rows.length == 10 && location.hash == '#/fleet?q=node-12'")
	b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(server.URL+"/#/fleet?q=node-123"))
	b.waits("document.querySelector('#nodes tbody').rows.length == 1 && document.querySelector('#node-search').value == 'node-123'")
	b.do(chromedp.Click("#nodes tbody a"))
	b.waits("document.querySelector('#node-plugins').innerText.includes('on-node-123')")
}

func TestManyPlugins(t *testing.T) {
	server := httptest.NewServer(page.New(many{}))
	defer shut(server)
	b := open(t, server.URL)
	b.waits("document.querySelector('#count').innerText == '5000 instances'")
	b.waits("document.querySelector('#list tbody').rows.length == 100 && document.querySelector('#page').innerText == 'Page 1 of 50'")
	b.do(chromedp.Click("#next"))
	b.waits("document.querySelector('#page').innerText == 'Page 2 of 50' && " + table + ".includes('plugin-0100')")
	b.do(chromedp.SendKeys("#search", "4321"))
	b.waits("document.querySelector('#list tbody').rows.length == 1 && " + table + ".includes('plugin-4321')")
}
