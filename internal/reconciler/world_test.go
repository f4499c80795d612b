package reconciler_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/discover/clock"
	"github.com/patchbay-dev/patchbay/internal/discover/machine"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

// world is everything around a reconciler, made of memory, so that its time is the one of a synctest bubble.
type world struct {
	t       *testing.T
	desired *cache.Desired
	r       *reconciler.Reconciler

	cfg     reconciler.Config
	stop    func()
	handler *recorder
	pace    clock.Pace // nil for the real one

	mu      sync.Mutex
	plugins map[string]*fakePlugin // by the path of the socket
	// processes are all plugins that ever were.
	processes map[plugin.Peer]*fakePlugin
	// owners are all that ever served a socket.
	owners   map[plugin.SocketID]*fakePlugin
	sockets  uint64   // counts sockets
	log      []string // handler and plugin calls, registry changes and events, in order
	registry map[string][]string
	// unreachable are instances that must not be dispensed.
	unreachable map[string]bool
	// saved is what is on disk, the newest first.
	saved  []plugin.Instance
	stages map[string]*staged
	// names are what is kept of names on disk, and said those that are to be.
	names, said map[plugin.Name]plugin.Reservation
	failSave    error
	withdrawn   error // of every socket
	// work counts calls to plugins, the disk and handlers by kind.
	work map[string]int
	// observe, staging, publishing and removing, if set, see events and what is to be saved, shown and removed, all but the first with the
	// world locked.
	observe                       func(plugin.Event)
	staging, publishing, removing func(plugin.Instance)
	// connecting and answering, if set, are called before a plugin is connected to and before it answers, with nothing locked.
	connecting, answering func()
	connects, answers     clock.Latency
	// saving, if set, is called before anything is saved, with nothing locked.
	saving func()
}

// plugin is who answers on a socket.
type fakePlugin struct {
	socket    plugin.SocketID
	info      plugin.Info
	dialErr   error
	infoErr   error
	infoTakes time.Duration
	notifyErr error
	// notifyTakes is how long it takes to be told that it is registered, refusalTakes that it is not.
	notifyTakes, refusalTakes time.Duration
	// exitsWhenRefused: it ends inside the call that tells it of a refusal.
	exitsWhenRefused bool
	backlogFull      bool // it accepts no more for the moment
	hangs            bool // in GetInfo
	dead             bool // nobody accepts
	peer             plugin.Peer
	account          plugin.Account
	watchers, exits  []func()
	// probed, if set, is what a probe does instead of watching.
	probed  func(hint func()) (stop func())
	hidden  bool // its process cannot be watched
	strange bool // its process cannot be seen

	// said is what it answered last, and told whether it was told last that it is registered.
	said plugin.Info
	told bool
	// onSaid and onTold, if set, see what it says and what it is told, with the world locked.
	onSaid func(plugin.Info)
	onTold func(registered bool, reason string)
}

// newWorld starts a reconciler in a bubble. Restored instances may be given.
func newWorld(t *testing.T, cfg reconciler.Config) *world {
	w := &world{
		t: t, cfg: cfg, owners: map[plugin.SocketID]*fakePlugin{}, plugins: map[string]*fakePlugin{}, processes: map[plugin.Peer]*fakePlugin{},
		registry: map[string][]string{}, unreachable: map[string]bool{}, stages: map[string]*staged{},
		names: map[plugin.Name]plugin.Reservation{}, work: map[string]int{},
	}
	w.handler = &recorder{w: w, fail: map[string]error{}}
	w.saved = slices.Clone(cfg.Restored)
	for _, in := range cfg.Restored {
		w.registry[in.Name] = append(w.registry[in.Name], in.ID)
	}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

// start runs a reconciler, which remembers what is on disk, in an empty desired state of the world.
func (w *world) start() {
	w.desired = cache.NewDesired()
	cfg := w.cfg
	cfg.Restored = slices.Clone(w.saved)
	w.said = map[plugin.Name]plugin.Reservation{}
	cfg.Names = slices.Collect(maps.Values(w.names))
	cfg.Desired, cfg.Transport, cfg.Registry = w.desired, transport{w}, registry{w}
	cfg.Observe = func(e plugin.Event) {
		if w.observe != nil {
			w.observe(e)
		}
		if e.Kind != plugin.EventRestored {
			w.note("event %s %s", e.Kind, e.Name)
		}
	}
	at := w.pace
	if at == nil {
		at = clock.Real()
	}
	r := reconciler.NewAt(cfg, at)
	w.r = r
	r.Audit(func(_ machine.Ref, row machine.Row) {
		if !inTable(row) {
			w.t.Errorf("%s → %s, %s: the table has no such row", row.From, row.To, row.On)
		}
	}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := r.Run(ctx); err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	w.stop = func() {
		cancel()
		ended.Wait()
	}
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// serve puts a plugin on a socket. The zero parts of p are filled in.
func (w *world) serve(path, name string, p *fakePlugin) *fakePlugin {
	w.t.Helper()
	if p == nil {
		p = &fakePlugin{}
	}
	if p.info.Type == "" {
		p.info = plugin.Info{Type: "T", Name: name, Endpoint: path + ".api", Versions: []string{"v1"}}
	}
	w.mu.Lock()
	w.sockets++
	if p.peer == (plugin.Peer{}) && !p.strange {
		p.peer = plugin.Peer{PID: int(w.sockets), Start: 1, Boot: "b"}
	}
	p.socket = plugin.SocketID{Device: 1, Inode: w.sockets, Birth: time.Now().UnixNano()}
	w.plugins[path], w.processes[p.peer], w.owners[p.socket] = p, p, p
	w.mu.Unlock()
	if err := w.desired.SetSocket(cache.PluginInfo{SocketPath: path, Socket: p.socket}); err != nil {
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
func (w *world) move(from, to string, p *fakePlugin) {
	w.mu.Lock()
	delete(w.plugins, from)
	w.plugins[to] = p
	w.mu.Unlock()
	w.desired.MoveSocket(from, cache.PluginInfo{SocketPath: to})
}

// kill ends a plugin and leaves its socket.
func (w *world) kill(p *fakePlugin) {
	w.mu.Lock()
	p.dead = true
	exits := p.exits
	p.exits = nil
	w.mu.Unlock()
	w.hint(p)
	for _, exit := range exits {
		exit()
	}
}

// hint tells whoever watches a plugin that something happened to it.
func (w *world) hint(p *fakePlugin) {
	w.mu.Lock()
	watchers := p.watchers
	p.watchers = nil
	w.mu.Unlock()
	for _, hint := range watchers {
		hint()
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

func (w *world) status(path string) plugin.Status {
	w.t.Helper()
	synctest.Wait()
	for _, s := range w.r.Plugins() {
		if s.SocketPath == path {
			return s
		}
	}
	w.t.Fatalf("no status for %s in %v", path, w.r.Plugins())
	return plugin.Status{}
}

// hidden says that an instance is not dispensed.
func (w *world) hidden(id string) bool {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unreachable[id]
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
