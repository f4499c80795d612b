package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// world is everything around a reconciler, made of memory, so that its time is the one of a synctest bubble.
type world struct {
	t       *testing.T
	desired cache.DesiredStateOfWorld
	actual  cache.ActualStateOfWorld
	r       *reconciler.Reconciler

	mu       sync.Mutex
	plugins  map[string]*plugin // by the path of the socket
	log      []string           // handler and plugin calls, registry changes and events, in order
	registry map[string][]string
	failSave error
	handler  *recorder
}

// plugin is who answers on a socket.
type plugin struct {
	info      reconciler.Info
	infoErr   error
	infoTakes time.Duration
	notifyErr error
	// refusalTakes is how long it takes to be told of a refusal.
	refusalTakes time.Duration
	// exitsWhenRefused: it ends inside the call that tells it of a refusal.
	exitsWhenRefused bool
	hangs            bool // in GetInfo
	dead             bool // nobody accepts
	peer             reconciler.Peer
	exited           func()
	// probed, if set, is what a probe does instead of watching.
	probed func(hint func()) (stop func())
	hidden bool // its process cannot be watched
}

var errRefused = errors.New("connection refused")

// newWorld starts a reconciler in a bubble. Restored instances may be given.
func newWorld(t *testing.T, cfg reconciler.Config) *world {
	w := &world{t: t, desired: cache.NewDesiredStateOfWorld(), actual: cache.NewActualStateOfWorld(),
		plugins: map[string]*plugin{}, registry: map[string][]string{}}
	w.handler = &recorder{w: w, fail: map[string]error{}}
	cfg.Desired, cfg.Actual, cfg.Transport, cfg.Registry = w.desired, w.actual, transport{w}, registry{w}
	cfg.Observe = func(e reconciler.Event) {
		if e.Kind != reconciler.EventRestored {
			w.note("event %s %s", e.Kind, e.Name)
		}
	}
	for _, in := range cfg.Restored {
		w.registry[in.Name] = append(w.registry[in.Name], in.ID)
	}
	w.r = reconciler.New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := w.r.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		ended.Wait()
		if left := w.actual.GetRegisteredPlugins(); len(left) != 0 {
			t.Errorf("after Run ended the actual state still holds %v", left)
		}
	})
	return w
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// serve puts a plugin on a socket. The zero parts of p are filled in.
func (w *world) serve(path, name string, p *plugin) *plugin {
	w.t.Helper()
	if p == nil {
		p = &plugin{}
	}
	if p.info.Type == "" {
		p.info = reconciler.Info{Type: "T", Name: name, Endpoint: path + ".api", Versions: []string{"v1"}}
	}
	if p.peer == (reconciler.Peer{}) {
		p.peer = reconciler.Peer{PID: 1000 + len(path), StartTime: uint64(len(w.log)), Boot: "b"}
	}
	w.mu.Lock()
	w.plugins[path] = p
	w.mu.Unlock()
	if err := w.desired.AddOrUpdatePlugin(path); err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) remove(path string) {
	w.mu.Lock()
	delete(w.plugins, path)
	w.mu.Unlock()
	w.desired.RemovePlugin(path)
}

// move renames the socket of a plugin.
func (w *world) move(from, to string, p *plugin) {
	w.mu.Lock()
	delete(w.plugins, from)
	w.plugins[to] = p
	w.mu.Unlock()
	w.desired.MoveSocket(from, cache.Socket{Path: to})
}

// kill ends a plugin and leaves its socket.
func (w *world) kill(p *plugin) {
	w.mu.Lock()
	p.dead = true
	exited := p.exited
	w.mu.Unlock()
	if exited != nil {
		exited()
	}
}

// expect waits until everything rests and compares what was noted since the last time.
func (w *world) expect(want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	got := w.log
	w.log = nil
	w.mu.Unlock()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		w.t.Errorf("what happened (-want +got):\n%s", diff)
	}
}

// expectCalls is expect for the handler's calls alone.
func (w *world) expectCalls(want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	got := slices.DeleteFunc(w.log, func(s string) bool {
		return strings.HasPrefix(s, "event ") || strings.HasPrefix(s, "told ") || strings.HasPrefix(s, "saved ") ||
			strings.HasPrefix(s, "published ") || strings.HasPrefix(s, "removed ") || strings.HasPrefix(s, "discarded ")
	})
	w.log = nil
	w.mu.Unlock()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		w.t.Errorf("handler calls (-want +got):\n%s", diff)
	}
}

func (w *world) status(path string) reconciler.Status {
	w.t.Helper()
	synctest.Wait()
	for _, s := range w.r.Plugins() {
		if s.SocketPath == path {
			return s
		}
	}
	w.t.Fatalf("no status for %s in %v", path, w.r.Plugins())
	return reconciler.Status{}
}

// recorder is a handler that notes its calls.
type recorder struct {
	w    *world
	mu   sync.Mutex
	fail map[string]error // by "validate NAME" or "register ENDPOINT"
	slow map[string]chan struct{}
}

func (h *recorder) outcome(call string) error {
	h.mu.Lock()
	wait := h.slow[call]
	h.mu.Unlock()
	if wait != nil {
		<-wait
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fail[call]
}

func (h *recorder) set(call string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fail[call] = err
}

func (h *recorder) ValidatePlugin(name, endpoint string, _ []string) error {
	h.w.note("validate %s %s", name, endpoint)
	return h.outcome("validate " + endpoint)
}

func (h *recorder) RegisterPlugin(name, endpoint string, _ []string, _ *time.Duration) error {
	h.w.note("register %s %s", name, endpoint)
	return h.outcome("register " + endpoint)
}

func (h *recorder) DeRegisterPlugin(name string) {
	h.w.note("deregister %s", name)
	_ = h.outcome("deregister " + name)
}

func (h *recorder) InstanceGone(name, endpoint string) { h.w.note("gone %s %s", name, endpoint) }

type transport struct{ w *world }

func (t transport) reach(path string) (*plugin, error) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	p := t.w.plugins[path]
	if p == nil || p.dead {
		return nil, errRefused
	}
	return p, nil
}

func (t transport) Dial(_ context.Context, path string) (reconciler.Conn, error) {
	p, err := t.reach(path)
	if err != nil {
		return nil, err
	}
	return &conn{t.w, p}, nil
}

func (t transport) Probe(_ context.Context, path string, hint func()) (func(), error) {
	p, err := t.reach(path)
	if err != nil {
		return nil, err
	}
	if p.probed != nil {
		return p.probed(hint), nil
	}
	stop, err := (&conn{t.w, p}).Watch(hint)
	if err != nil {
		return nil, nil //nolint:nilerr // It lives; it cannot be watched.
	}
	return stop, nil
}

func (t transport) Refused(err error) bool { return errors.Is(err, errRefused) }

type conn struct {
	w *world
	p *plugin
}

func (c *conn) GetInfo(ctx context.Context) (reconciler.Info, error) {
	c.w.mu.Lock()
	info, err, takes, hangs := c.p.info, c.p.infoErr, c.p.infoTakes, c.p.hangs
	c.w.mu.Unlock()
	if hangs {
		takes = time.Hour
	}
	if takes > 0 {
		timer := time.NewTimer(takes)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return reconciler.Info{}, ctx.Err()
		}
	}
	if c.broken() {
		return reconciler.Info{}, io.EOF
	}
	return info, err
}

// broken says that the plugin behind the connection is dead.
func (c *conn) broken() bool {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.p.dead
}

func (c *conn) Notify(_ context.Context, registered bool, reason string) error {
	if c.broken() {
		return io.EOF
	}
	c.w.note("told %s %t%s", c.p.info.Name, registered, map[bool]string{true: "", false: ": " + reason}[reason == ""])
	if !registered {
		time.Sleep(c.p.refusalTakes)
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		if c.p.exitsWhenRefused {
			c.p.dead = true
			return io.EOF
		}
		return nil
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.p.notifyErr
}

func (c *conn) Peer() reconciler.Peer { return c.p.peer }

func (c *conn) Watch(exited func()) (func(), error) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if c.p.hidden || c.p.dead {
		return nil, io.EOF
	}
	c.p.exited = exited
	return func() {}, nil
}

func (c *conn) Close() error { return nil }

// registry notes what it is asked to keep; names only, for identifiers are random.
type registry struct{ w *world }

type staged struct {
	w  *world
	in reconciler.Instance
}

func (r registry) Stage(in reconciler.Instance) (reconciler.Staged, error) {
	r.w.mu.Lock()
	err := r.w.failSave
	r.w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	r.w.note("saved %s %s", in.Name, in.Endpoint)
	return staged{r.w, in}, nil
}

func (r registry) Remove(_, name, id string) error {
	r.w.mu.Lock()
	if err := r.w.failSave; err != nil {
		r.w.mu.Unlock()
		return err
	}
	r.w.registry[name] = slices.DeleteFunc(r.w.registry[name], func(s string) bool { return s == id })
	r.w.mu.Unlock()
	r.w.note("removed %s", name)
	return nil
}

func (r registry) Confirm(_, name, id string)          { r.w.note("confirmed %s %s", name, id) }
func (r registry) Unreachable(_, _, _ string, _ error) {}

func (s staged) Publish() {
	s.w.note("published %s", s.in.Name)
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if !slices.Contains(s.w.registry[s.in.Name], s.in.ID) {
		s.w.registry[s.in.Name] = append([]string{s.in.ID}, s.w.registry[s.in.Name]...)
	}
}

func (s staged) Discard() error {
	s.w.mu.Lock()
	err := s.w.failSave
	s.w.mu.Unlock()
	if err != nil {
		return err
	}
	s.w.note("discarded %s", s.in.Name)
	return nil
}
