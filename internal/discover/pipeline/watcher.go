// Package pipeline finds plugins in directories and calls their handlers. It connects the parts of discovery: package dirwatch reports
// sockets, package cache stores them, and package reconciler registers the plugins. This package adds the rules of trust for what is found,
// the connections to plugins, and the entries in the registry.
//
// Package pluginwatcher offers the pipeline under the kubelet's names.
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
	// deprecatedSkip is a directory in the deprecated plugin directory that is ignored, because it belongs to other programs.
	deprecatedSkip = "kubernetes.io"
)

// Watcher finds plugins and registers them with their handlers. Its exported fields may be set before [Watcher.Run], and must not be
// changed afterwards. Its methods are safe for concurrent use. The zero value with Dirs is ready for use.
type Watcher struct {
	// Dirs are the absolute paths of the plugin directories. Those that do not exist are created, with mode 0750. None may contain another.
	Dirs []string
	// DeprecatedDir is a directory in which older plugins put their sockets; empty for none. Everything under kubernetes.io/ in it is
	// ignored.
	DeprecatedDir string
	// MaxDepth bounds the directories below a plugin directory on the way to a socket (default 16), MaxSockets the sockets in one directory
	// (default 10,000). MaxUserDirs bounds the directories below the plugin directories that are searched for one user (default 6,000), and
	// MaxDirs those of all users (default 20,000), of which as many as one user may have are reserved for root and the host's user. A
	// [dirwatch.Condition] reports what exceeds a bound and is therefore ignored.
	MaxDepth, MaxSockets, MaxUserDirs, MaxDirs int
	// Trust decides whose directories and sockets are used, and which users may register which plugins. If it is nil, only root and the
	// host's user are trusted, and may register everything.
	Trust *trustjudge.Judge
	// Launched returns the plugin that the host launched to serve at a path, or in the directory at a path; nil if there is none. It is
	// trusted there whichever user it runs as. It is a function because plugins are launched at any time. Nil: nothing is launched.
	Launched func(path string) Launch
	// Registration configures how plugins are registered. The Watcher sets its Desired, Transport and Trust.
	Registration reconciler.Config
	// FileEventsLost, if set, is called whenever the system lost file events. A scan then finds the changes. It is called on the goroutine
	// that watches, and must not block.
	FileEventsLost func()

	awaiting awaiting

	// mu guards what follows.
	mu         sync.Mutex
	ready      chan struct{} // closed after the first search; nil until it is needed
	handlers   map[string]cache.PluginHandler
	added      chan struct{} // closed when a handler is added; nil while nobody waits
	running    *pipeline     // nil while the watcher does not run
	conditions []dirwatch.Condition
}

// Validate returns an error if a directory is empty, relative, or contains another, or a bound or a timeout is negative.
func (w *Watcher) Validate() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if min(w.MaxDepth, w.MaxSockets, w.MaxUserDirs, w.MaxDirs) < 0 {
		return errors.New("one of MaxDepth, MaxSockets, MaxUserDirs and MaxDirs is negative: use 0 for the default")
	}
	if err := dirwatch.CheckRoots(w.allDirs()); err != nil {
		return err
	}
	return w.Registration.Validate()
}

// allDirs returns Dirs and, last, DeprecatedDir.
func (w *Watcher) allDirs() []string {
	dirs := slices.Clone(w.Dirs)
	if w.DeprecatedDir != "" {
		dirs = append(dirs, w.DeprecatedDir)
	}
	return dirs
}

// AddHandler sets the handler for a plugin type. It may be called at any time: plugins that wait for a handler are registered immediately.
// It panics if the handler is nil or the type is invalid.
func (w *Watcher) AddHandler(pluginType string, handler cache.PluginHandler) {
	if handler == nil {
		panic("AddHandler: the handler of plugin type " + pluginType + " is nil")
	}
	if !untrusted.IsType(pluginType) {
		panic(fmt.Sprintf("AddHandler: %q %s", pluginType, untrusted.TypeSyntax))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.handlers == nil {
		w.handlers = map[string]cache.PluginHandler{}
	}
	w.handlers[pluginType] = handler
	if w.added != nil {
		close(w.added)
		w.added = nil
	}
	if w.running != nil {
		w.running.reconciler.SetHandler(pluginType, handler)
	}
}

// AwaitHandler blocks until a plugin type has a handler in a Watcher, or ctx ends. It reports whether the type has one.
func AwaitHandler(ctx context.Context, w *Watcher, pluginType string) bool {
	for {
		w.mu.Lock()
		if w.added == nil {
			w.added = make(chan struct{})
		}
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

// RemoveHandler removes the handler for a plugin type. Its plugins are deregistered.
func (w *Watcher) RemoveHandler(pluginType string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.handlers, pluginType)
	if w.running != nil {
		w.running.reconciler.RemoveHandler(pluginType)
	}
}

// SetTimeouts replaces the Timeouts and TypeTimeouts of Registration for all steps that begin after the call. If it returns an error,
// nothing changes; see [reconciler.CheckTimeouts].
func (w *Watcher) SetTimeouts(all plugin.Timeouts, byType map[string]plugin.Timeouts) error {
	if err := reconciler.CheckTimeouts(all, byType); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Registration.Timeouts, w.Registration.TypeTimeouts = all, maps.Clone(byType)
	if w.running != nil {
		return w.running.reconciler.SetTimeouts(all, byType)
	}
	return nil
}

// Reconciler returns the reconciler of the current run, or nil while the watcher does not run.
func (w *Watcher) Reconciler() *reconciler.Reconciler {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running == nil {
		return nil
	}
	return w.running.reconciler
}

// Plugins returns the statuses of the known plugins and sockets. It returns none, and false, while the watcher does not run.
func (w *Watcher) Plugins() (plugins []plugin.Status, running bool) {
	w.mu.Lock()
	p := w.running
	w.mu.Unlock()
	if p == nil {
		return nil, false
	}
	return append(p.reconciler.Plugins(), p.gate.statuses()...), true
}

// Ready returns a channel that is closed after the first search of all plugin directories.
func (w *Watcher) Ready() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.readyChan()
}

// readyChan returns ready. mu is held.
func (w *Watcher) readyChan() chan struct{} {
	if w.ready == nil {
		w.ready = make(chan struct{})
	}
	return w.ready
}

// Conditions returns the current problems of discovery, sorted by path.
func (w *Watcher) Conditions() []dirwatch.Condition {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.conditions)
}

// Check blocks until the loops that find and register plugins answer. It returns an error if ctx ends before that, or the watcher does not
// run. A hanging handler or plugin does not affect it.
func (w *Watcher) Check(ctx context.Context) error {
	w.mu.Lock()
	p := w.running
	w.mu.Unlock()
	if p == nil {
		return errors.New("the plugin watcher is not running")
	}
	if err := p.dirs.Check(ctx); err != nil {
		return err
	}
	return p.reconciler.Check(ctx)
}

// Run watches until ctx ends. It returns when all its goroutines have ended, however long a handler takes. Plugins are not deregistered: a
// later Run finds, validates and registers them again. It returns an error if the configuration is invalid, a plugin directory cannot be
// created or read, or the watcher is already running.
func (w *Watcher) Run(ctx context.Context) error {
	run, err := w.Begin()
	if err != nil {
		return err
	}
	return run(ctx)
}

// answerTime is how long the file system of a plugin directory may take to answer before [MakeDirs] fails.
const answerTime = 10 * time.Second

// MakeDirs creates the plugin directories that do not exist, with mode 0750, and checks that all are readable. A watcher calls it when it
// starts; a program can call it earlier. If a file system does not answer within 10 s, MakeDirs returns an error and leaves a goroutine
// blocked in the system call.
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

// pipeline is one run of a watcher.
type pipeline struct {
	gate       *gate
	dirs       *dirwatch.Watcher
	desired    *cache.Desired
	reconciler *reconciler.Reconciler
	transport  *transport
	log        *slog.Logger
	scanned    bool
}

// Begin does the part of [Watcher.Run] that can fail immediately, and returns the rest, which the caller must call.
func (w *Watcher) Begin() (run func(context.Context) error, err error) {
	if err := w.Validate(); err != nil {
		return nil, fmt.Errorf("cannot watch the plugin directories: %w", err)
	}
	dirs := w.allDirs()
	if err := MakeDirs(dirs); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running != nil {
		return nil, errors.New("cannot start the plugin watcher: it is already running")
	}
	p := &pipeline{gate: &gate{trust: w.Trust, launched: w.Launched}, desired: cache.NewDesired(), log: w.Registration.Logger}
	if p.gate.trust == nil {
		p.gate.trust = trustjudge.Default()
	}
	if p.gate.launched == nil {
		p.gate.launched = func(string) Launch { return nil }
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	roots := make([]dirwatch.Root, len(dirs))
	for i, dir := range dirs {
		roots[i].Path = dir
	}
	if w.DeprecatedDir != "" {
		roots[len(roots)-1].Skip = []string{deprecatedSkip}
	}
	p.dirs, err = dirwatch.New(func(u dirwatch.Update) { w.take(p, u) }, roots...)
	if err != nil {
		return nil, fmt.Errorf("cannot watch the plugin directories: %w", err)
	}
	p.dirs.Judge = p.gate
	p.dirs.MaxDepth, p.dirs.MaxSockets, p.dirs.MaxUserDirs, p.dirs.MaxDirs = w.MaxDepth, w.MaxSockets, w.MaxUserDirs, w.MaxDirs
	cfg := w.Registration
	peers, err := sock.NewWatcher()
	if err != nil {
		return nil, err
	}
	asking := newAsking(cfg.Bounds.UserPlugins, cfg.Bounds.TotalPlugins)
	p.transport = &transport{peers: peers, gate: p.gate, roots: dirs, asking: asking}
	cfg.Desired, cfg.Transport, cfg.Trust, cfg.Observe = p.desired, p.transport, p.gate.trust, w.observe
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
		w.running, w.conditions = nil, nil
	}()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.dirs.Run(ctx) })
	group.Go(func() error { return p.reconciler.Run(ctx) })
	group.Go(func() error { return p.transport.peers.Run(ctx) })
	return group.Wait()
}

// take applies an update of the directories.
func (w *Watcher) take(p *pipeline, u dirwatch.Update) {
	w.refuse(p, u.Refused) // first, because Withdrawn needs the reasons for the facts
	deprecatedRoot := len(w.Dirs)
	for _, fact := range u.Facts {
		socket := cache.PluginInfo{SocketPath: fact.Path, Socket: fact.Info.ID, FoundInDeprecatedDir: fact.Root == deprecatedRoot}
		switch {
		case !fact.Present:
			p.desired.RemovePlugin(fact.Path)
		case fact.MovedFrom != "":
			_ = p.desired.MoveSocket(fact.MovedFrom, socket) // neither path is empty
		default:
			if err := p.desired.SetSocket(socket); err != nil {
				p.log.Error("cannot enter a socket into the desired state of the world", "socket", fact.Path, "error", err)
			}
		}
	}
	if u.EventsLost && w.FileEventsLost != nil {
		w.FileEventsLost()
	}
	w.degrade(u.Degraded)
	if u.Scanned && !p.scanned {
		p.scanned = true
		p.reconciler.MarkComplete()
		w.mu.Lock()
		ready := w.readyChan()
		w.mu.Unlock()
		select {
		case <-ready: // by an earlier run
		default:
			close(ready)
		}
	}
}

// degrade replaces the conditions, and reports which ones are new and which have ended.
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
			w.observePath(plugin.EventDegraded, c.Path, c.Reason)
			if c.IsDirLimit() && w.Registration.Refused != nil {
				w.Registration.Refused(trust.Directories)
			}
		}
	}
	for _, c := range before {
		if !isIn(now, c) {
			w.observePath(plugin.EventRecovered, c.Path, "resolved: "+c.Reason)
		}
	}
}

func (w *Watcher) observePath(kind plugin.EventKind, path, message string) {
	w.observe(plugin.Event{Time: time.Now(), Kind: kind, SocketPath: path, Message: message})
}

// observe passes an event to the observer, and to callers of [AwaitRegistered].
func (w *Watcher) observe(e plugin.Event) {
	if w.Registration.Observe != nil {
		w.Registration.Observe(e)
	}
	w.awaiting.notify(e)
}
