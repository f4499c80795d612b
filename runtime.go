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
	"github.com/patchbay-dev/patchbay/internal/discover/dirwatch"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/journal"
	"github.com/patchbay-dev/patchbay/internal/launch/sealedexec"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/regular"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// Config configures a [Runtime]. One plugin directory is enough.
type Config struct {
	// PluginDirs are the directories where plugins create their sockets. Missing ones are created with mode 0750. None may contain another.
	PluginDirs []string
	// DeprecatedPluginDir is where older plugins create their sockets; empty for none. Its subdirectory kubernetes.io/ is ignored.
	DeprecatedPluginDir string
	// State stores registrations across restarts, for example a dynamicplugins/boltstate.Store. If nil, nothing is remembered. The caller
	// closes it after Run has returned.
	State dynamicplugins.StateStorage
	// Dispensers create the clients that Registry().DispensePlugin returns, by plugin type.
	Dispensers map[string]dynamicplugins.PluginDispenser
	// RegistryOptions are further options of the registry, for example dispensers on shared connections.
	RegistryOptions []dynamicplugins.Option
	// Timeouts limit the steps of a registration. TypeTimeouts override them for some plugin types; until a plugin has announced its type,
	// the longest one applies.
	Timeouts     plugin.Timeouts
	TypeTimeouts map[string]plugin.Timeouts
	// Bounds limit what a plugin may announce; the others limit the search of the plugin directories (see pluginwatcher.Config).
	Bounds                                     plugin.Bounds
	MaxDepth, MaxSockets, MaxUserDirs, MaxDirs int
	// ClientTimeout returns the timeout for calls to a plugin, which its handler receives; nil for none. May be nil.
	ClientTimeout func(pluginType, pluginName string) *time.Duration
	// UnreachableGrace is how long a plugin stays registered after its socket stops accepting (default 0: it does not).
	UnreachableGrace time.Duration
	// NameGrace is how long a name stays reserved for its user after its last instance is gone (default 10 minutes; negative: not at all).
	// Meanwhile, other users' plugins of that name are refused with the reason, except those of root, of this process's user, and one that
	// the Launcher launched under exactly that name. It does not apply to types with Supersede in Trust. It holds across restarts if State
	// stores PluginChange.Reservation, as dynamicplugins/boltstate does. At most 256 names per user are reserved, dropping the oldest first, and
	// 4,096 in total.
	NameGrace time.Duration
	// IgnoreUnhandled leaves plugins of a type without a handler alone: they are asked for their type and name, sent nothing, and
	// registered as soon as there is a handler. Use it if the host shares a directory with another one. Otherwise they are sent a refusal,
	// which makes some exit.
	IgnoreUnhandled bool
	// Host describes the host to launched plugins.
	Host plugin.Config
	// Trust says whose directories and sockets are used, and who may register which plugin types. The zero value trusts root and the user
	// of this process with everything. A plugin that the Launcher runs as another user is trusted on its own socket.
	Trust trust.Policy
	// Admission returns the admission plugin to ask before a program is launched and before a plugin is registered, for example from
	// [host.NewAdmission]. New calls it with the Runtime's host; the Runtime closes the result when Run ends. If nil, everything is
	// admitted.
	//
	// The pin of a discovered plugin is its name and the digest of the program that the process behind its socket runs; that of a launched
	// one is the name it was launched under and the digest of what was executed. A plugin whose program cannot be read is refused. If the
	// admission plugin does not answer, the plugin is tried again with back-off.
	Admission func(*host.Host) (plugin.AdmissionPlugin, error)
	// LaunchedOnly refuses every plugin that neither the Launcher nor the Host launched. Admission of those only proves what the process
	// behind the socket was executing when it was checked, not who created the socket.
	LaunchedOnly bool
	// SurvivorDir records launched plugins that survive the Runtime; see [host.Host].StateDir. If empty, none survives.
	SurvivorDir string
	// EventsPath is a file that keeps events beyond the Runtime, one line of JSON each; older ones move to EventsPath + ".1". Each file
	// holds about 4 MiB at most. After a crash, a torn line is skipped and the very last events may be missing. If empty, events end with
	// the Runtime. It must be a regular file, or not exist yet.
	EventsPath string
	// Observer sees what the Runtime does.
	Observer Observer
	// Logger receives what an operator should know: each event, which [Runtime.Events] delivers too, and the output of launched plugins.
	// If nil, nothing is logged.
	Logger *slog.Logger
}

// Runtime discovers, registers and dispenses plugins. Its methods are safe for concurrent use.
type Runtime struct {
	registry *dynamicplugins.Store
	watcher  *pipeline.Watcher
	journal  *journal.Journal
	ready    chan struct{}

	host         *host.Host
	launcher     *launcher.Launcher
	admission    plugin.AdmissionPlugin // nil if everything is admitted
	launchedOnly bool
	programs     sealedexec.Programs

	mu        sync.Mutex
	ran       bool
	replacing map[string]context.CancelFunc // launched plugins whose process is replaced; the end of that
}

// New returns a Runtime and loads its state. It returns an error if the state or the configuration is unusable. Nothing is watched before
// [Runtime.Run].
func New(cfg Config) (*Runtime, error) {
	rt, err := newRuntime(cfg)
	if err != nil {
		return nil, fmt.Errorf("cannot create a plugin runtime: %w", err)
	}
	return rt, nil
}

func newRuntime(cfg Config) (*Runtime, error) {
	if len(cfg.PluginDirs) == 0 && cfg.DeprecatedPluginDir == "" {
		return nil, errors.New("Config.PluginDirs is empty; name a directory in which plugins put their sockets")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Observer = cfg.Observer.guarded(cfg.Logger)
	if err := cmp.Or(cfg.absolute(), regular.Check(cfg.EventsPath)); err != nil {
		return nil, err
	}
	rt := &Runtime{
		ready: make(chan struct{}), launchedOnly: cfg.LaunchedOnly, replacing: map[string]context.CancelFunc{},
	}
	watching := rt.watching(cfg)
	if err := watching.Validate(); err != nil {
		return nil, err
	}
	var err error
	if watching.Trust, err = trust.New(cfg.Trust); err != nil {
		return nil, fmt.Errorf("trust.%w", err)
	}
	rt.registry, err = dynamicplugins.Open(cfg.State, cfg.Dispensers, append([]dynamicplugins.Option{
		dynamicplugins.WithStatsHandlers(cfg.Observer.StatsHandlers...),
		dynamicplugins.WithObserver(dynamicplugins.Observer{Dispense: cfg.Observer.Dispense, Resync: cfg.Observer.Resync}),
		dynamicplugins.WithConnJudge(pipeline.Judge(watching.Trust)),
	}, cfg.RegistryOptions...)...)
	if err != nil {
		return nil, err
	}
	rt.journal = journal.New(cfg.Logger, cfg.EventsPath, cfg.Observer.Event, cfg.Observer.Resync)
	if err := rt.newLaunching(cfg); err != nil {
		return nil, err
	}
	if rt.admission != nil || rt.launchedOnly {
		watching.Reconciler.Admit = rt.mayRegister
	}
	watching.Reconciler.Registry = pipeline.RegistryOf(rt.registry)
	watching.Reconciler.Restored = pipeline.Restored(rt.registry, cfg.Logger)
	watching.Reconciler.Names = rt.registry.Reservations()
	rt.watcher = pipeline.New(watching)
	return rt, nil
}

// watching configures what finds and registers plugins, except for the trust and what is loaded.
func (rt *Runtime) watching(cfg Config) pipeline.Config {
	return pipeline.Config{
		Dirs:           cfg.PluginDirs,
		DeprecatedDir:  cfg.DeprecatedPluginDir,
		MaxDepth:       cfg.MaxDepth,
		MaxSockets:     cfg.MaxSockets,
		MaxUserDirs:    cfg.MaxUserDirs,
		MaxDirs:        cfg.MaxDirs,
		Launched:       rt.launchAt,
		Scanned:        func() { close(rt.ready) },
		FileEventsLost: cfg.Observer.FileEventsLost,
		Reconciler: reconciler.Config{
			Observe:          rt.observe,
			Passed:           func(e plugin.Event) { rt.journal.Pass(e) },
			Attempted:        cfg.Observer.Attempt,
			Refused:          cfg.Observer.Refused,
			Tracer:           cfg.Observer.Tracer,
			Source:           rt.sourceOf,
			ClientTimeout:    cfg.ClientTimeout,
			Timeouts:         cfg.Timeouts,
			TypeTimeouts:     cfg.TypeTimeouts,
			Bounds:           cfg.Bounds,
			UnreachableGrace: cfg.UnreachableGrace,
			NameGrace:        cmp.Or(cfg.NameGrace, defaultNameGrace),
			IgnoreUnhandled:  cfg.IgnoreUnhandled,
			Logger:           cfg.Logger,
		},
	}
}

// absolute makes all paths absolute, so that they mean the same whatever happens to the working directory.
func (c *Config) absolute() error {
	c.PluginDirs = slices.Clone(c.PluginDirs)
	paths := []*string{&c.DeprecatedPluginDir, &c.SurvivorDir, &c.EventsPath}
	for i, dir := range c.PluginDirs {
		if dir == "" {
			return errors.New("one of Config.PluginDirs is empty")
		}
		paths = append(paths, &c.PluginDirs[i])
	}
	for _, path := range paths {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("cannot find out where %s is: %w; use an absolute path", *path, err)
		}
		*path = abs
	}
	return nil
}

// AddHandler makes h the handler of a plugin type. It may be called at any time; plugins waiting for the handler are registered at once. A
// plugin without a handler is refused (or ignored, with Config.IgnoreUnhandled), and if it is remembered from before a restart it is
// forgotten. So add handlers before Run where possible. AddHandler panics if h is nil or pluginType is empty or has a slash.
func (rt *Runtime) AddHandler(pluginType string, h cache.PluginHandler) {
	rt.watcher.AddHandler(pluginType, h)
}

// RemoveHandler removes the handler of a plugin type and deregisters its plugins.
func (rt *Runtime) RemoveHandler(pluginType string) {
	rt.watcher.RemoveHandler(pluginType)
}

// SetTimeouts replaces Config.Timeouts and Config.TypeTimeouts for every step that begins from now on. It may be called at any time. If a
// timeout is negative it returns an error and changes nothing.
func (rt *Runtime) SetTimeouts(all plugin.Timeouts, byType map[string]plugin.Timeouts) error {
	return rt.watcher.SetTimeouts(all, byType)
}

// Reconsider immediately retries every plugin that was refused or failed. Call it after the rules have changed, for example those of a
// handler or an admission plugin. It may be called at any time and does not block.
func (rt *Runtime) Reconsider() {
	if r := rt.watcher.Reconciler(); r != nil {
		r.Reconsider()
	}
}

// Registry returns the registry of plugins. It can be used before and during Run, and read after it.
func (rt *Runtime) Registry() *dynamicplugins.Store { return rt.registry }

// Run discovers and registers plugins until ctx ends. It then stops launched plugins, waits for everything it started, including running
// handler calls, and shuts the registry down. Plugins stay registered in the saved state; the next Runtime with that state restores them.
// Call Run once. It returns an error if a plugin directory cannot be created or read.
func (rt *Runtime) Run(ctx context.Context) error {
	rt.mu.Lock()
	again := rt.ran
	rt.ran = true
	rt.mu.Unlock()
	if again {
		return errors.New("cannot run a plugin runtime twice: create a new one")
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

// Ready returns a channel that is closed after the first search of all plugin directories.
func (rt *Runtime) Ready() <-chan struct{} { return rt.ready }

// Check returns nil as soon as discovery and registration respond. If ctx ends first, or the Runtime is not running, the error says what
// does not respond. Use it for a watchdog: hung handlers and plugins do not affect it.
func (rt *Runtime) Check(ctx context.Context) error { return rt.watcher.Check(ctx) }

// Plugins returns the status of all known plugins and sockets, sorted by type and name, newest instance first. It includes plugins that
// others put into the registry.
func (rt *Runtime) Plugins() []plugin.Status {
	statuses, running := rt.watcher.Plugins()
	statuses = append(statuses, pipeline.Statuses(rt.registry, "", running)...)
	rt.markIdle(statuses)
	return inOrder(rt.withUnknown(statuses))
}

// PluginsNamed is Plugins of those that announced one name, of any type. It costs little, however many other plugins there are.
func (rt *Runtime) PluginsNamed(name string) []plugin.Status {
	r := rt.watcher.Reconciler()
	statuses := pipeline.Statuses(rt.registry, name, r != nil)
	if r != nil {
		statuses = append(r.PluginsNamed(name), statuses...)
	}
	rt.markIdle(statuses)
	return inOrder(statuses)
}

func inOrder(statuses []plugin.Status) []plugin.Status {
	slices.SortStableFunc(statuses, func(a, b plugin.Status) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
	})
	return statuses
}

// Refusals returns the last refusal of each plugin that is gone and has not been registered since, for example one that exits when it is
// refused. The state is refused, LastError the reason and Since the time. The order is that of Plugins. At most 64 per user and 1,024 in
// total are kept, in memory, dropping the oldest first.
func (rt *Runtime) Refusals() []plugin.Status {
	if r := rt.watcher.Reconciler(); r != nil {
		return r.Refusals()
	}
	return nil
}

// ConditionDirectories names the [Condition] that is degraded while directories or sockets of users other than root and the host's own
// cause trouble, for example because there are too many, or after file events were lost. The host's own plugins are found regardless.
const ConditionDirectories = "directories"

// ConditionEvents names the [Condition] that is degraded while events cannot be kept in Config.EventsPath. Plugins register regardless.
const ConditionEvents = "events"

// Conditions returns the Runtime's conditions: [ConditionDirectories], [ConditionEvents] if there is a Config.EventsPath, and "discovery",
// which is degraded while something owned by root or the host's user keeps plugins from being found in time.
func (rt *Runtime) Conditions() []plugin.Condition {
	var own, others []dirwatch.Condition
	for _, c := range rt.watcher.Conditions() {
		if c.Minor {
			others = append(others, c)
		} else {
			own = append(own, c)
		}
	}
	all := []plugin.Condition{condition(ConditionDirectories, others), condition("discovery", own)}
	if message, since, kept := rt.journal.Trouble(); kept {
		all = append(all, plugin.Condition{Name: ConditionEvents, OK: message == "", Message: message, Since: since})
	}
	return all
}

// condition makes one condition of those of the plugin directories.
func condition(name string, degraded []dirwatch.Condition) plugin.Condition {
	if len(degraded) == 0 {
		return plugin.Condition{Name: name, OK: true}
	}
	c := plugin.Condition{Name: name, Since: degraded[0].Since}
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
