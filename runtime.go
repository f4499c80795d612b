package patchbay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/discover/enrol"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/entrance"
	"github.com/patchbay-dev/patchbay/internal/journal"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/reconciler"
	"github.com/patchbay-dev/patchbay/trust"
)

// Config says what a [Runtime] works with. A Config with one plugin directory works.
type Config struct {
	// PluginDirs are the directories in which plugins put their sockets. Those that do not exist are made, with mode 0750. None may
	// contain another.
	PluginDirs []string
	// DeprecatedPluginDir is a directory in which older plugins put their sockets; empty for none. Everything under kubernetes.io/ in
	// it is ignored.
	DeprecatedPluginDir string
	// State keeps what is registered over restarts, for example a dynamicplugins/boltstate.Store. Nil: nothing is remembered. The
	// caller closes it, after Run has returned.
	State dynamicplugins.StateStorage
	// Dispensers make the clients that Registry().DispensePlugin hands out, by plugin type.
	Dispensers map[string]dynamicplugins.PluginDispenser
	// RegistryOptions are further options of the registry, for example dispensers on shared connections.
	RegistryOptions []dynamicplugins.Option
	// Timeouts bound the steps of a registration. TypeTimeouts go before them for some plugin types; until a plugin has said of what
	// type it is, the longest that is configured for any counts.
	Timeouts     reconciler.Timeouts
	TypeTimeouts map[string]reconciler.Timeouts
	// Bounds limit what a plugin may announce; the others limit what is looked for in the plugin directories (see pluginwatcher.Config).
	Bounds                                     reconciler.Bounds
	MaxDepth, MaxSockets, MaxUserDirs, MaxDirs int
	// ClientTimeout returns the timeout for calls to a plugin, which is handed to its handler; nil for none. May be nil.
	ClientTimeout func(pluginType, pluginName string) *time.Duration
	// UnreachableGrace is how long a plugin on whose socket nobody accepts stays registered (default 0: not at all).
	UnreachableGrace time.Duration
	// NameGrace is how long the name of a plugin stays its user's after its last instance has gone (default 10 minutes; a negative one: not at
	// all). A plugin of another user that announces the name is refused meanwhile, and told whose it is; those of root, of the user of this
	// process, and one that the Launcher launched under that very name take it at once. A type of Trust with Supersede has none of this. It
	// holds over restarts if State keeps what it is given as PluginChange.Kept, as that of dynamicplugins/boltstate does. 256 names are kept
	// for one user, of which the oldest go first, and 4,096 in all.
	NameGrace time.Duration
	// IgnoreUnhandled says that plugins of a type without a handler are left alone: they are asked who they are and told nothing, and are
	// registered as soon as there is a handler. It is for a host that shares a directory with another. Otherwise they are told that they are
	// refused, on which some exit.
	IgnoreUnhandled bool
	// Host is what launched plugins are told of their surroundings.
	Host plugin.Config
	// Trust says whose directories and sockets are used, and who may register plugins of which types. The zero value: those of root and of
	// the user of this process, who may register everything. A plugin that the Launcher runs as another user is trusted at its own socket.
	Trust trust.Policy
	// Admission returns whom to ask whether a plugin may be registered, and before that whether a program may be launched; what
	// [host.NewAdmission] returns, for example. It is called by New, with the host of the Runtime, which closes what it returns when Run ends.
	// Nil: all may.
	//
	// The pin of a plugin is its name and the digest of the program that the process behind its socket runs; for one that was launched, the
	// name with which it was, and the digest of what was executed. A plugin whose program cannot be read is refused. One for which there is
	// no answer is tried again with back-off.
	Admission func(*host.Host) (plugin.AdmissionPlugin, error)
	// LaunchedOnly says that only plugins are registered that the Launcher, or the Host, launched: all others are refused, and told so. What
	// admission proves of others is what the process behind a socket executed when it was asked, and nothing of who made the socket.
	LaunchedOnly bool
	// SurvivorDir is where launched plugins that survive the Runtime are remembered; see [host.Host].StateDir. Empty: none survives.
	SurvivorDir string
	// EventsPath is a file in which the events outlive the Runtime, one line of JSON each, with the file EventsPath + ".1" of those before;
	// each has at most about 4 MiB. A line that was torn by a crash is passed over, and those of the last moment before one may be missing.
	// Empty: the events end with the Runtime.
	EventsPath string
	// Observer sees what the Runtime does.
	Observer Observer
	// Logger gets what an operator should know, and what launched plugins print. Nil: nothing is logged.
	Logger *slog.Logger
}

// PluginStatus describes one instance of a plugin, or one socket that has not answered yet.
type PluginStatus = reconciler.Status

// Runtime finds plugins, registers them and hands them out. Its methods are safe for concurrent use.
type Runtime struct {
	log      *slog.Logger
	registry *dynamicplugins.Store
	watcher  *pipeline.Watcher
	launched entrance.Launched
	journal  *journal.Journal
	ready    chan struct{}

	mu  sync.Mutex
	ran bool
}

// New returns a Runtime. It loads the state: an error says that it, or the configuration, cannot be used. Nothing is watched before
// [Runtime.Run].
func New(cfg Config) (*Runtime, error) {
	if len(cfg.PluginDirs) == 0 && cfg.DeprecatedPluginDir == "" {
		return nil, errors.New("cannot make a plugin runtime: Config.PluginDirs is empty; name a directory in which plugins put their sockets")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := cfg.absolute(); err != nil {
		return nil, fmt.Errorf("cannot make a plugin runtime: %w", err)
	}
	trusted, err := trust.New(cfg.Trust)
	if err != nil {
		return nil, fmt.Errorf("cannot make a plugin runtime: trust.%w", err)
	}
	registry, err := dynamicplugins.Open(cfg.State, cfg.Dispensers, slices.Concat(
		cfg.Observer.registryOptions(), []dynamicplugins.Option{dynamicplugins.WithConnJudge(enrol.Judge(trusted))}, cfg.RegistryOptions)...)
	if err != nil {
		return nil, fmt.Errorf("cannot make a plugin runtime: %w", err)
	}
	rt := &Runtime{
		log:      cfg.Logger,
		registry: registry,
		journal:  journal.New(cfg.Logger, cfg.EventsPath, cfg.Observer.Event, cfg.Observer.Resync),
		ready:    make(chan struct{}),
	}
	mayRegister, err := rt.newLaunching(cfg)
	if err != nil {
		return nil, fmt.Errorf("cannot make a plugin runtime: %w", err)
	}
	rt.watcher = pipeline.New(pipeline.Config{
		Dirs:           cfg.PluginDirs,
		DeprecatedDir:  cfg.DeprecatedPluginDir,
		MaxDepth:       cfg.MaxDepth,
		MaxSockets:     cfg.MaxSockets,
		MaxUserDirs:    cfg.MaxUserDirs,
		MaxDirs:        cfg.MaxDirs,
		Trust:          trusted,
		Launched:       rt.launched.At,
		Scanned:        func() { close(rt.ready) },
		FileEventsLost: cfg.Observer.FileEventsLost,
		Reconciler:     rt.reconcilerConfig(cfg, mayRegister),
	})
	return rt, nil
}

// reconcilerConfig configures what registers plugins; admit says which may.
func (rt *Runtime) reconcilerConfig(cfg Config, admit func(context.Context, reconciler.Instance) error) reconciler.Config {
	return reconciler.Config{
		Registry:         enrol.In(rt.registry),
		Restored:         enrol.Restored(rt.registry, cfg.Logger),
		Observe:          rt.observe,
		Attempted:        cfg.Observer.Attempt,
		Refused:          cfg.Observer.Refused,
		Tracer:           cfg.Observer.Tracer,
		Source:           rt.launched.Source,
		Admit:            admit,
		ClientTimeout:    cfg.ClientTimeout,
		Timeouts:         cfg.Timeouts,
		TypeTimeouts:     cfg.TypeTimeouts,
		Bounds:           cfg.Bounds,
		UnreachableGrace: cfg.UnreachableGrace,
		NameGrace:        cmp.Or(cfg.NameGrace, defaultNameGrace),
		Names:            enrol.Names(rt.registry),
		IgnoreUnhandled:  cfg.IgnoreUnhandled,
		Logger:           cfg.Logger,
	}
}

// absolute gives all paths their one form: they mean the same whatever happens to the working directory.
func (c *Config) absolute() error {
	c.PluginDirs = slices.Clone(c.PluginDirs)
	paths := []*string{&c.DeprecatedPluginDir, &c.SurvivorDir, &c.EventsPath}
	for i := range c.PluginDirs {
		paths = append(paths, &c.PluginDirs[i])
	}
	for _, path := range paths {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("cannot find out where %s is: %w; write the path from the root directory", *path, err)
		}
		*path = abs
	}
	return nil
}

// AddHandler makes h the consumer of the plugins of a type. It may be called at any time: plugins that are waiting for it are registered
// at once. Without a handler a plugin is refused, and told so unless Config.IgnoreUnhandled is set; one that is remembered from before a
// restart is then forgotten, so handlers that are known at the start are best added before Run.
func (rt *Runtime) AddHandler(pluginType string, h cache.PluginHandler) {
	rt.watcher.AddHandler(pluginType, h)
}

// RemoveHandler ends the service of a plugin type: its plugins are deregistered.
func (rt *Runtime) RemoveHandler(pluginType string) {
	rt.watcher.RemoveHandler(pluginType)
}

// SetTimeouts takes the place of Config.Timeouts and Config.TypeTimeouts, for every step that begins from now on. It may be called at any
// time; the map belongs to the Runtime afterwards.
func (rt *Runtime) SetTimeouts(all reconciler.Timeouts, byType map[string]reconciler.Timeouts) {
	rt.watcher.SetTimeouts(all, byType)
}

// Reconsider tries at once every plugin that was refused or failed and waits for its next attempt. It is for hosts in which what judges
// plugins, a handler or what an admission plugin reads, has changed. It may be called at any time and does not block.
func (rt *Runtime) Reconsider() { rt.watcher.Reconsider() }

// Registry returns the registry of plugins. It can be used before, while and, except for changes, after the Runtime runs.
func (rt *Runtime) Registry() *dynamicplugins.Store { return rt.registry }

// Run finds and registers plugins until ctx ends. It then ends the launched plugins, and returns when everything that was started has
// ended, which includes handler calls that are running, and the registry is shut down. Plugins stay registered in the saved state: the
// next Run with the same state restores them. Run may be called once. An error says that a plugin directory cannot be made or read.
func (rt *Runtime) Run(ctx context.Context) error {
	rt.mu.Lock()
	again := rt.ran
	rt.ran = true
	rt.mu.Unlock()
	if again {
		return errors.New("cannot run a plugin runtime twice: make a new one")
	}
	// The events of the end are written, too.
	writing, written := context.WithCancel(context.WithoutCancel(ctx))
	var writer sync.WaitGroup
	writer.Go(func() { rt.journal.Run(writing) })
	defer writer.Wait()
	defer written()
	defer rt.journal.Close()
	defer rt.registry.Shutdown()
	return rt.runUntil(ctx)
}

// Ready returns a channel that is closed when all plugin directories have been searched for the first time.
func (rt *Runtime) Ready() <-chan struct{} { return rt.ready }

// Check returns nil as soon as what finds and what registers plugins answers, and an error that says what does not when ctx ends before
// that, or if the Runtime does not run. It is what a watchdog should ask: a handler or plugin that hangs does not matter to it.
func (rt *Runtime) Check(ctx context.Context) error { return rt.watcher.Check(ctx) }

// Plugins describes all plugins and sockets that are known, sorted by type and name, the newest instance of each first. It includes what
// was put into the registry by others than the Runtime.
func (rt *Runtime) Plugins() []PluginStatus {
	statuses, running := rt.watcher.Plugins()
	statuses = append(statuses, enrol.Statuses(rt.registry, running)...)
	statuses = append(statuses, rt.launched.Statuses(statuses)...)
	slices.SortStableFunc(statuses, func(a, b PluginStatus) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
	})
	return statuses
}

// Refusals describes the last refusal of each name that has not been registered since and whose plugin is gone, for example because it
// exits when it is refused: the state is refused, LastError the reason, and Since the time. They are sorted like Plugins, the newest of
// each first, and bounded: 64 for each user and 1,024 in all, in memory, the oldest are forgotten first.
func (rt *Runtime) Refusals() []PluginStatus { return rt.watcher.Refusals() }

// Condition says whether one part of the Runtime is as it should be.
type Condition struct {
	// Name names the part, for example "discovery"; each stands once.
	Name string
	OK   bool
	// Message says what is wrong and what to do; empty if OK.
	Message string
	// Since is when it began; zero if OK.
	Since time.Time
}

// ConditionDirectories is the name of a [Condition] that is degraded while something is wrong with directories or sockets of other users
// than root and the host's own, for example that they are too many, or file events were lost: what is the host's own is found all the same.
const ConditionDirectories = "directories"

// Conditions says how the Runtime is: [ConditionDirectories], then "discovery", which is degraded while something of root's or of the
// host's own user's keeps plugins from being found in time.
func (rt *Runtime) Conditions() []Condition {
	var own, others []pipeline.Condition
	for _, c := range rt.watcher.Conditions() {
		if c.Minor {
			others = append(others, c)
		} else {
			own = append(own, c)
		}
	}
	return []Condition{condition(ConditionDirectories, others), condition("discovery", own)}
}

// condition makes one condition of those of the plugin directories.
func condition(name string, degraded []pipeline.Condition) Condition {
	if len(degraded) == 0 {
		return Condition{Name: name, OK: true}
	}
	c := Condition{Name: name, Since: degraded[0].Since}
	reasons := make([]string, len(degraded))
	for i, d := range degraded {
		reasons[i] = d.Path + ": " + d.Reason
		if d.Since.Before(c.Since) {
			c.Since = d.Since
		}
	}
	c.Message = strings.Join(reasons, "; ")
	return c
}
