// Package pipeline joins the parts of discovery: directories in, handler calls out. internal/discover/dirwatch states facts about sockets,
// package cache keeps them, package reconciler acts on them; here is what stands between: who may have what is found, how it is reached,
// and how the registry keeps it. It has no opinion on plugins.
//
// Package pluginwatcher shows it to host authors under the kubelet's names, and brings the example plugin, which a host that imports only
// the runtime does not have in its program.
package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/discover/dirwatch"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

const (
	dirMode = 0o750
	// deprecatedSkip is the directory that is left out of a deprecated plugin directory: other users of that directory keep it.
	deprecatedSkip = "kubernetes.io"
)

// Watcher finds plugins and hands them to their handlers. Its methods are safe for concurrent use.
type Watcher struct {
	cfg  Config
	dirs []string // of cfg, the deprecated one last
	gate *gate
	// ready is closed by isReady after the first search.
	ready   chan struct{}
	isReady sync.Once
	// awaiting is notified of each event that Config.Reconciler.Observe receives.
	awaiting awaiting

	// mu guards what follows.
	mu         sync.Mutex
	handlers   map[string]cache.PluginHandler
	added      chan struct{} // closed and replaced when a handler is added
	running    *pipeline     // nil while the watcher does not run
	conditions []dirwatch.Condition
}

// Config is what a [Watcher] works with.
type Config struct {
	// Dirs are the plugin directories, by absolute paths. Those that do not exist are made, with mode 0750. None may contain another.
	Dirs []string
	// DeprecatedDir is a directory in which older plugins put their sockets; empty for none. Everything under kubernetes.io/ in it is
	// ignored.
	DeprecatedDir string
	// MaxDepth bounds the directories below a plugin directory on the way to a socket (default 16), MaxSockets the sockets in one directory
	// (default 10,000). MaxUserDirs bounds the directories below the plugin directories that are searched of one user (default 6,000),
	// MaxDirs those of all (default 20,000), of which the last, as many as one user may have, are for those of root and of the host's user.
	// What lies beyond a bound is left out, and a [dirwatch.Condition] says so.
	MaxDepth, MaxSockets, MaxUserDirs, MaxDirs int
	// Trust says whose directories and sockets are used, and who may register what. Nil: those of root and of the host's user, who may
	// register everything.
	Trust *trustjudge.Judge
	// Launched returns the plugin that was told to serve at a path, or in the directory at a path; nil if there is none. It is trusted
	// there as whatever user it runs. It is a function because what is launched changes. Nil: nothing is launched.
	Launched func(path string) Launch
	// Reconciler configures what happens with the sockets that are found. Desired, Transport and Trust are the watcher's own.
	Reconciler reconciler.Config
	// FileEventsLost, if set, is called whenever the system lost file events, for which a scan makes up, from the goroutine that watches: it
	// must not block. It is a function like those of an observer in Reconciler.
	FileEventsLost func()
}

// Validate returns an error if a directory is empty, relative, or contains another, or a bound or a timeout is negative.
func (c Config) Validate() error {
	if min(c.MaxDepth, c.MaxSockets, c.MaxUserDirs, c.MaxDirs) < 0 {
		return errors.New("one of MaxDepth, MaxSockets, MaxUserDirs and MaxDirs is negative: use 0 for the default")
	}
	if err := dirwatch.CheckRoots(c.roots()); err != nil {
		return err
	}
	return c.Reconciler.Validate()
}

// roots returns all directories, the deprecated one last.
func (c Config) roots() []string {
	dirs := slices.Clone(c.Dirs)
	if c.DeprecatedDir != "" {
		dirs = append(dirs, c.DeprecatedDir)
	}
	return dirs
}

// New returns a Watcher. It does nothing before [Watcher.Run], which fails if the configuration is not valid.
func New(cfg Config) *Watcher {
	if cfg.Reconciler.Logger == nil {
		cfg.Reconciler.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Trust == nil {
		cfg.Trust = trustjudge.Default()
	}
	if cfg.Launched == nil {
		cfg.Launched = func(string) Launch { return nil }
	}
	w := &Watcher{
		cfg: cfg, dirs: cfg.roots(), gate: &gate{trust: cfg.Trust, launched: cfg.Launched},
		handlers: map[string]cache.PluginHandler{}, added: make(chan struct{}), ready: make(chan struct{}),
	}
	w.cfg.Reconciler.Observe = func(e plugin.Event) {
		if cfg.Reconciler.Observe != nil {
			cfg.Reconciler.Observe(e)
		}
		w.awaiting.notify(e)
	}
	w.cfg.Reconciler.TypeTimeouts = maps.Clone(cfg.Reconciler.TypeTimeouts)
	return w
}

// AddHandler makes handler the consumer of the plugins of a type. It may be called at any time: plugins that are waiting for it are
// registered at once. It panics if the handler is nil or the type is not one.
func (w *Watcher) AddHandler(pluginType string, handler cache.PluginHandler) {
	if handler == nil {
		panic("AddHandler: the handler of plugin type " + pluginType + " is nil")
	}
	if !untrusted.IsType(pluginType) {
		panic(fmt.Sprintf("AddHandler: %q %s", pluginType, untrusted.TypeSyntax))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handlers[pluginType] = handler
	close(w.added)
	w.added = make(chan struct{})
	if w.running != nil {
		w.running.reconciler.SetHandler(pluginType, handler)
	}
}

// AwaitHandler blocks until a plugin type has a handler in a Watcher, or ctx ends. It reports whether the type has one.
func AwaitHandler(ctx context.Context, w *Watcher, pluginType string) bool {
	for {
		w.mu.Lock()
		has, added := w.handlers[pluginType] != nil, w.added
		w.mu.Unlock()
		if has || ctx.Err() != nil {
			return has
		}
		select {
		case <-added:
		case <-ctx.Done():
		}
	}
}

// RemoveHandler ends the service of a plugin type: its plugins are deregistered.
func (w *Watcher) RemoveHandler(pluginType string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.handlers, pluginType)
	if w.running != nil {
		w.running.reconciler.RemoveHandler(pluginType)
	}
}

// SetTimeouts takes the place of Timeouts and TypeTimeouts of Config.Reconciler, for every step that begins from now on. With an
// error nothing changes; see [reconciler.CheckTimeouts].
func (w *Watcher) SetTimeouts(all plugin.Timeouts, byType map[string]plugin.Timeouts) error {
	if err := reconciler.CheckTimeouts(all, byType); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cfg.Reconciler.Timeouts, w.cfg.Reconciler.TypeTimeouts = all, maps.Clone(byType)
	if w.running != nil {
		return w.running.reconciler.SetTimeouts(all, byType)
	}
	return nil
}

// Reconciler returns what registers the plugins that are found; nil while the watcher does not run.
func (w *Watcher) Reconciler() *reconciler.Reconciler {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running == nil {
		return nil
	}
	return w.running.reconciler
}

// Plugins describes the plugins and sockets that are known. It reports false while the watcher does not run, and then knows none.
func (w *Watcher) Plugins() (plugins []plugin.Status, running bool) {
	r := w.Reconciler()
	if r == nil {
		return nil, false
	}
	return append(r.Plugins(), w.gate.statuses()...), true
}

// Ready returns a channel that is closed after the first search of all plugin directories.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

// Conditions says what hinders discovery at present, sorted by path.
func (w *Watcher) Conditions() []dirwatch.Condition {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.conditions)
}

// Check returns nil as soon as what finds and what registers plugins answers, and an error that says what does not when ctx ends before
// that, or if the watcher does not run. A handler or plugin that hangs does not matter to it.
func (w *Watcher) Check(ctx context.Context) error {
	w.mu.Lock()
	p := w.running
	w.mu.Unlock()
	if p == nil {
		return errors.New("the plugin watcher does not run")
	}
	if err := p.dirs.Check(ctx); err != nil {
		return err
	}
	return p.reconciler.Check(ctx)
}

// Run watches until ctx ends. It returns when everything that it started has ended, however long a handler takes. Plugins are not
// deregistered: a later Run finds, validates and registers them again. An error says that a plugin directory cannot be made or read, or
// that the watcher runs already.
func (w *Watcher) Run(ctx context.Context) error {
	run, err := w.Begin()
	if err != nil {
		return err
	}
	return run(ctx)
}

// answerTime is how long the file system of a plugin directory may take to answer before [MakeDirs] fails.
const answerTime = 10 * time.Second

// MakeDirs makes the plugin directories that do not exist, with mode 0750, and finds out whether all can be read. A watcher does this when
// it begins; who has something else to begin with can do it before. If a file system does not answer, MakeDirs returns an error and leaves
// a goroutine behind, which ends with the call that does not return.
func MakeDirs(dirs []string) error {
	for _, dir := range dirs {
		made := make(chan error, 1)
		go func() { made <- makeDir(dir) }()
		limit := time.NewTimer(answerTime)
		select {
		case err := <-made:
			limit.Stop()
			if err != nil {
				return err
			}
		case <-limit.C:
			return fmt.Errorf("cannot read plugin directory %s: its file system does not answer; restore its server, or unmount it: "+
				"umount --lazy PATH", dir)
		}
	}
	return nil
}

func makeDir(dir string) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("cannot create plugin directory %s: %w; choose another directory", dir, err)
	}
	if err := readable(dir); err != nil {
		return fmt.Errorf("cannot read plugin directory %s: %w; let user %d read it or choose another directory", dir, err, os.Geteuid())
	}
	return nil
}

func readable(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	_, err = dir.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, dir.Close())
}

// pipeline is what one run of a watcher consists of.
type pipeline struct {
	dirs       *dirwatch.Watcher
	desired    *cache.Desired
	reconciler *reconciler.Reconciler
	transport  *transport
	scanned    bool
}

// Begin does the part of [Watcher.Run] that can fail at once, and returns the rest, which is to be called.
func (w *Watcher) Begin() (run func(context.Context) error, err error) {
	w.mu.Lock()
	err = w.cfg.Validate()
	w.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("cannot watch the plugin directories: %w", err)
	}
	if err := MakeDirs(w.dirs); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running != nil {
		return nil, errors.New("cannot start the plugin watcher: it is already running")
	}
	p := &pipeline{}
	var roots []dirwatch.Root
	for _, dir := range w.dirs {
		roots = append(roots, dirwatch.Root{Path: dir})
	}
	if w.cfg.DeprecatedDir != "" {
		roots[len(roots)-1].Skip = []string{deprecatedSkip}
	}
	p.dirs, err = dirwatch.New(func(u dirwatch.Update) { w.take(p, u) }, roots...)
	if err != nil {
		return nil, fmt.Errorf("cannot watch the plugin directories: %w", err)
	}
	p.dirs.Judge = w.gate
	p.dirs.MaxDepth, p.dirs.MaxSockets = w.cfg.MaxDepth, w.cfg.MaxSockets
	p.dirs.MaxUserDirs, p.dirs.MaxDirs = w.cfg.MaxUserDirs, w.cfg.MaxDirs
	peers, err := sock.NewWatcher()
	if err != nil {
		return nil, err
	}
	asking := newAsking(w.cfg.Reconciler.Bounds.UserPlugins, w.cfg.Reconciler.Bounds.TotalPlugins)
	p.transport = &transport{peers: peers, gate: w.gate, roots: w.dirs, asking: asking}
	p.desired = cache.NewDesired()
	cfg := w.cfg.Reconciler
	cfg.Desired, cfg.Transport, cfg.Trust = p.desired, p.transport, w.cfg.Trust
	p.reconciler = reconciler.New(cfg)
	for _, ptype := range slices.Sorted(maps.Keys(w.handlers)) {
		p.reconciler.SetHandler(ptype, w.handlers[ptype])
	}
	w.running = p
	return func(ctx context.Context) error { return w.run(ctx, p) }, nil
}

func (w *Watcher) run(ctx context.Context, p *pipeline) error {
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.running = nil
		w.conditions = nil
		w.gate.set(nil)
	}()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.dirs.Run(ctx) })
	group.Go(func() error { return p.reconciler.Run(ctx) })
	group.Go(func() error { return p.transport.peers.Run(ctx) })
	return group.Wait()
}

func (w *Watcher) take(p *pipeline, u dirwatch.Update) {
	w.refuse(u.Refused) // first, so that it is known why a socket is gone
	deprecatedRoot := len(w.cfg.Dirs)
	for _, fact := range u.Facts {
		socket := cache.PluginInfo{SocketPath: fact.Path, Socket: fact.Info.ID, FoundInDeprecatedDir: fact.Root == deprecatedRoot}
		switch {
		case !fact.Present:
			p.desired.RemovePlugin(fact.Path)
		case fact.MovedFrom != "":
			_ = p.desired.MoveSocket(fact.MovedFrom, socket) // neither path is empty
		default:
			if err := p.desired.SetSocket(socket); err != nil {
				w.cfg.Reconciler.Logger.Error("cannot enter a socket into the desired state of the world", "socket", fact.Path, "error", err)
			}
		}
	}
	if u.EventsLost && w.cfg.FileEventsLost != nil {
		w.cfg.FileEventsLost()
	}
	w.degrade(u.Degraded)
	if u.Scanned && !p.scanned {
		p.scanned = true
		p.reconciler.Synced()
		w.isReady.Do(func() { close(w.ready) })
	}
}

// degrade takes over what hinders discovery now, and reports what is new and what is over.
func (w *Watcher) degrade(now []dirwatch.Condition) {
	w.mu.Lock()
	before := w.conditions
	w.conditions = now
	w.mu.Unlock()
	isIn := func(list []dirwatch.Condition, c dirwatch.Condition) bool {
		return slices.ContainsFunc(list, func(o dirwatch.Condition) bool { return o.ID() == c.ID() })
	}
	for _, c := range now {
		if !isIn(before, c) {
			w.observe(plugin.EventDegraded, c.Path, c.Reason)
			if c.IsDirLimit() && w.cfg.Reconciler.Refused != nil {
				w.cfg.Reconciler.Refused(trust.Directories)
			}
		}
	}
	for _, c := range before {
		if !isIn(now, c) {
			w.observe(plugin.EventRecovered, c.Path, "over: "+c.Reason)
		}
	}
}

func (w *Watcher) observe(kind plugin.EventKind, path, message string) {
	w.cfg.Reconciler.Observe(plugin.Event{Time: time.Now(), Kind: kind, SocketPath: path, Message: message})
}
