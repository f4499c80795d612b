package pluginwatcher_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// patience bounds every wait in the tests. It says nothing about how long things take.
const patience = 2 * time.Minute

// calls records the calls of a handler as lines, for any number of plugins.
type calls struct {
	mu      sync.Mutex
	got     []string
	changed chan struct{}
	refuse  error
}

func newCalls() *calls { return &calls{changed: make(chan struct{}, 1)} }

func (c *calls) add(format string, args ...any) {
	c.mu.Lock()
	c.got = append(c.got, fmt.Sprintf(format, args...))
	c.mu.Unlock()
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *calls) ValidatePlugin(name, _ string, _ []string, deprecated bool) error {
	c.add("validate %s %t", name, deprecated)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refuse
}

func (c *calls) RegisterPlugin(name, endpoint string, _ []string) error {
	c.add("register %s %s", name, filepath.Base(endpoint))
	return nil
}

func (c *calls) DeRegisterPlugin(name string) { c.add("deregister %s", name) }

// await waits for the next calls.
func (c *calls) await(t *testing.T, want ...string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		c.mu.Lock()
		got := strings.Join(c.got, "\n")
		if got == strings.Join(want, "\n") {
			c.got = nil
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		select {
		case <-c.changed:
		case <-deadline:
			t.Fatalf("calls:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
		}
	}
}

type fakePlugin interface {
	Stop() error
	Statuses() <-chan *registerapi.RegistrationStatus
}

// awaitStatus waits until the plugin is told, and returns what.
func awaitStatus(t *testing.T, p fakePlugin) *registerapi.RegistrationStatus {
	t.Helper()
	select {
	case status := <-p.Statuses():
		return status
	case <-time.After(patience):
		t.Fatal("the plugin was told nothing")
		return nil
	}
}

func serve(t *testing.T, name, path string) fakePlugin {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	p := pluginwatcher.NewTestExamplePlugin(name, "T", path, "v1beta1")
	if err := p.Serve("v1beta1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, p) })
	return p
}

func start(t *testing.T, w *pluginwatcher.Watcher) {
	t.Helper()
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, w) })
}

func TestWatcherFindsPlugins(t *testing.T) {
	dir, old := t.TempDir(), t.TempDir()
	w := pluginwatcher.NewWatcher(dir, old)
	h := newCalls()
	w.AddHandler("T", h)

	early := serve(t, "early", filepath.Join(dir, "early.sock"))
	start(t, w)
	h.await(t, "validate early false", "register early early.sock")

	late := serve(t, "late", filepath.Join(dir, "some/where/below", "late"))
	h.await(t, "validate late false", "register late late")
	serve(t, "hidden", filepath.Join(dir, ".hidden.sock"))
	serve(t, "hidden", filepath.Join(dir, ".dir", "hidden.sock"))
	serve(t, "kube", filepath.Join(old, "kubernetes.io", "kube.sock"))
	serve(t, "deprecated", filepath.Join(old, "deprecated.sock"))
	h.await(t, "validate deprecated true", "register deprecated deprecated.sock")

	awaitStatus(t, early)
	stop(t, early)
	h.await(t, "deregister early")
	awaitStatus(t, late)
	stop(t, late)
	h.await(t, "deregister late")
}

// A relative directory is that of the moment at which the watcher was made.
func TestRelativeDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	w := pluginwatcher.NewWatcher("plugins", "old")
	t.Chdir(t.TempDir())
	h := newCalls()
	w.AddHandler("T", h)
	start(t, w)
	serve(t, "foo", filepath.Join(dir, "plugins", "foo.sock"))
	h.await(t, "validate foo false", "register foo foo.sock")
	serve(t, "bar", filepath.Join(dir, "old", "bar.sock"))
	h.await(t, "validate bar true", "register bar bar.sock")
}

func TestStartAfterStop(t *testing.T) {
	dir := t.TempDir()
	w := pluginwatcher.NewWatcher(dir, "")
	h := newCalls()
	w.AddHandler("T", h)
	served := serve(t, "foo", filepath.Join(dir, "foo.sock"))
	up := []string{"validate foo false", "register foo foo.sock"}
	for range 3 {
		start(t, w)
		h.await(t, up...)
		awaitStatus(t, served)
		if err := w.Start(); err == nil {
			t.Error("Start of a watcher that runs succeeds")
		}
		stop(t, w)
		h.await(t)
		if plugins, running := w.Plugins(); running {
			t.Errorf("a stopped watcher knows %v", plugins)
		}
	}
	stop(t, w)
	start(t, w)
	h.await(t, up...)
	awaitStatus(t, served)
	stop(t, served)
	h.await(t, "deregister foo")
}

func TestRefusal(t *testing.T) {
	dir := t.TempDir()
	w := pluginwatcher.NewWatcher(dir, "")
	h := newCalls()
	h.refuse = errors.New("not today")
	w.AddHandler("T", h)
	start(t, w)
	p := serve(t, "foo", filepath.Join(dir, "foo.sock"))
	if status := awaitStatus(t, p); status.PluginRegistered || status.Error != "plugin validation failed: not today" {
		t.Errorf("the plugin was told %v", status)
	}
}

// TestPanicHasTheRightName: a handler of the older interface has no RegisterPluginContext that could panic.
func TestPanicHasTheRightName(t *testing.T) {
	dir := t.TempDir()
	w := pluginwatcher.NewWatcher(dir, "")
	w.AddHandler("T", panicking{newCalls()})
	start(t, w)
	p := serve(t, "foo", filepath.Join(dir, "foo.sock"))
	want := "plugin registration failed: the handler panicked in RegisterPlugin: oops"
	if status := awaitStatus(t, p); status.Error != want {
		t.Errorf("the plugin was told %q, want %q", status.Error, want)
	}
}

type panicking struct{ *calls }

func (panicking) RegisterPlugin(string, string, []string) error { panic("oops") }

func TestExampleHandlerThroughThePipeline(t *testing.T) {
	dir := t.TempDir()
	w := pluginwatcher.NewWatcher(dir, "")
	h := pluginwatcher.NewExampleHandler([]string{"v1beta1", "v1beta2"}, true)
	w.AddHandler("T", h)
	start(t, w)
	p := serve(t, "foo", filepath.Join(dir, "foo.sock"))
	for _, want := range []string{"ValidatePlugin", "RegisterPlugin"} {
		if got := (<-h.EventChan("foo")).String(); got != want {
			t.Errorf("call %s, want %s", got, want)
		}
	}
	awaitStatus(t, p)
	stop(t, p)
	if got := (<-h.EventChan("foo")).String(); got != "DeRegisterPlugin" {
		t.Errorf("call %s, want DeRegisterPlugin", got)
	}
}

// A plugin that sends garbage is an event, and nobody else's problem.
func TestGarbage(t *testing.T) {
	dir := t.TempDir()
	events := make(chan plugin.Event, 100)
	w := pluginwatcher.With(&pipeline.Watcher{Dirs: []string{dir}, Registration: reconciler.Config{
		Observe: func(e plugin.Event) { events <- e },
	}})
	h := newCalls()
	w.AddHandler("T", h)
	start(t, w)
	listener, err := net.Listen("unix", filepath.Join(dir, "garbage.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\n\r\nthis is not HTTP/2"))
			_ = conn.Close()
		}
	}()
	select {
	case e := <-events:
		if e.Kind != plugin.EventFailed || !strings.Contains(e.Message, "GetInfo") {
			t.Errorf("event %+v", e)
		}
	case <-time.After(patience):
		t.Fatal("no event")
	}
	serve(t, "foo", filepath.Join(dir, "foo.sock"))
	h.await(t, "validate foo false", "register foo foo.sock")
}

func TestStartSaysWhatIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := pluginwatcher.NewWatcher(file, "")
	if err := w.Start(); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a plugin directory that is a file: %v", err)
	}
	dir := t.TempDir()
	if err := pluginwatcher.NewWatcher(dir, filepath.Join(dir, "inside")).Start(); err == nil {
		t.Error("plugin directories that contain each other are accepted")
	}
	if err := pluginwatcher.NewWatcher(filepath.Join(dir, "new"), "").Stop(); err != nil {
		t.Errorf("Stop without Start: %v", err)
	}
}

// TestRefuses checks that Start and Run refuse what cannot work before they create anything, and that every method returns before Start, in
// use, after Stop and twice.
func TestRefuses(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "plugins")
	for name, change := range map[string]func(*pipeline.Watcher){
		"an empty directory":      func(c *pipeline.Watcher) { c.Dirs = append(c.Dirs, "") },
		"a directory twice":       func(c *pipeline.Watcher) { c.Dirs = append(c.Dirs, dir) },
		"a nested directory":      func(c *pipeline.Watcher) { c.Dirs = append(c.Dirs, dir+"/a") },
		"a nested deprecated one": func(c *pipeline.Watcher) { c.DeprecatedDir = dir + "/a" },
		"a NUL":                   func(c *pipeline.Watcher) { c.Dirs = []string{dir + "\x00"} },
		"an overlong directory":   func(c *pipeline.Watcher) { c.Dirs = []string{dir + strings.Repeat("a", 300)} },
		"MaxDepth":                func(c *pipeline.Watcher) { c.MaxDepth = -1 },
		"a bound":                 func(c *pipeline.Watcher) { c.Registration.Bounds.Text = -1 },
		"a timeout":               func(c *pipeline.Watcher) { c.Registration.Timeouts.Dial = -1 },
	} {
		pipe := &pipeline.Watcher{Dirs: []string{dir}}
		change(pipe)
		w := pluginwatcher.With(pipe)
		startErr, runErr := w.Start(), w.Run(t.Context())
		if startErr == nil || runErr == nil {
			t.Errorf("%s: the errors are %v and %v", name, startErr, runErr)
		}
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: a directory was created: %v", name, err)
		}
	}
	w := pluginwatcher.NewWatcher(dir, "")
	for name, add := range map[string]func(){
		"a nil handler":       func() { w.AddHandler("T", nil) },
		"a nil cache handler": func() { w.Pipeline().AddHandler("T", nil) },
		"no type":             func() { w.AddHandler("", pluginwatcher.NewExampleHandler(nil, false)) },
		"a slash":             func() { w.AddHandler("T/x", pluginwatcher.NewExampleHandler(nil, false)) },
		"a control character": func() { w.AddHandler("T\x1b", pluginwatcher.NewExampleHandler(nil, false)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("AddHandler accepted %s", name)
				}
			}()
			add()
		}()
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	all := func(state string) {
		w.RemoveHandler("none")
		w.Plugins()
		w.Pipeline().Conditions()
		if w.Pipeline().SetTimeouts(plugin.Timeouts{Dial: -1}, nil) == nil {
			t.Errorf("%s, what cannot be was accepted", state)
		}
		r := w.Pipeline().Reconciler()
		if (r != nil) != (state == "in use") {
			t.Errorf("%s, the reconciler is %v", state, r)
		}
		if r == nil {
			return
		}
		r.Reconsider()
		if r.Retry("", "") || r.ReleaseName(ended, plugin.Name{}) == nil {
			t.Errorf("%s, what cannot be was accepted", state)
		}
	}
	all("before Start")
	for range 2 {
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
		if w.Start() == nil || w.Run(t.Context()) == nil {
			t.Error("it was started twice")
		}
		all("in use")
		for range 2 {
			if err := w.Stop(); err != nil {
				t.Error(err)
			}
		}
		all("after Stop")
	}
	if err := w.Run(ended); err != nil {
		t.Errorf("with a context that has ended: %v", err)
	}
	p := pluginwatcher.NewExamplePlugin()
	if p.Serve() == nil || p.Stop() != nil {
		t.Error("an example plugin without a socket serves, or cannot be stopped")
	}
}
