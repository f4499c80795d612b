package pluginruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/discover/dirwatch"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/journal"
	"github.com/patchbay-dev/patchbay/internal/keeper"
	"github.com/patchbay-dev/patchbay/internal/launch/sealedexec"
	"github.com/patchbay-dev/patchbay/internal/regular"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// Config configures a [Runtime]; see patchbay.Config for what the fields mean.
type Config struct {
	// Pipeline discovers and registers plugins. The Runtime sets its callbacks, its Trust and its Logger, and runs it.
	Pipeline        *pipeline.Watcher
	State           dynamicplugins.StateStorage
	Dispensers      map[string]dynamicplugins.PluginDispenser
	RegistryOptions []dynamicplugins.Option
	Host            plugin.Config
	Trust           trust.Policy
	Admission       func(*host.Host) (plugin.AdmissionPlugin, error)
	LaunchedOnly    bool
	SurvivorDir     string
	EventsPath      string
	Observer        Observer
	Logger          *slog.Logger
}

// Runtime is what patchbay.Runtime exports, and what only the daemon needs. Its methods are safe for concurrent use.
type Runtime struct {
	*pipeline.Watcher // its Run, Plugins and Conditions are parts of the Runtime's

	registry *dynamicplugins.Store
	journal  *journal.Journal

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
	if len(cfg.Pipeline.Dirs) == 0 && cfg.Pipeline.DeprecatedDir == "" {
		return nil, errors.New("Config.PluginDirs is empty; name a directory in which plugins put their sockets")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Observer = cfg.Observer.guarded(cfg.Logger)
	if err := cmp.Or(cfg.absolute(), regular.Check(cfg.EventsPath)); err != nil {
		return nil, err
	}
	watcher := cfg.Pipeline
	rt := &Runtime{Watcher: watcher, launchedOnly: cfg.LaunchedOnly, replacing: map[string]context.CancelFunc{}}
	rt.configure(cfg)
	err := watcher.Validate()
	if err != nil {
		return nil, err
	}
	if watcher.Trust, err = trustjudge.New(cfg.Trust); err != nil {
		return nil, fmt.Errorf("trust.%w", err)
	}
	rt.registry, err = dynamicplugins.Open(cfg.State, cfg.Dispensers, append([]dynamicplugins.Option{
		dynamicplugins.WithStatsHandlers(cfg.Observer.StatsHandlers...),
		dynamicplugins.WithObserver(dynamicplugins.Observer{Dispense: cfg.Observer.Dispense, Resync: cfg.Observer.Resync}),
		dynamicplugins.WithConnJudge(pipeline.Judge(watcher.Trust)),
	}, cfg.RegistryOptions...)...)
	if err != nil {
		return nil, err
	}
	rt.journal = journal.New(cfg.Logger, cfg.EventsPath, cfg.Observer.Event, cfg.Observer.Resync)
	if err := rt.newLaunching(cfg); err != nil {
		return nil, err
	}
	if rt.admission != nil || rt.launchedOnly {
		watcher.Registration.Admit = rt.mayRegister
	}
	watcher.Registration.Registry = pipeline.RegistryOf(rt.registry)
	watcher.Registration.Restored = pipeline.Restored(rt.registry, cfg.Logger)
	watcher.Registration.Names = keeper.Of[*dynamicplugins.PluginInfo](rt.registry).Reservations()
	return rt, nil
}

// configure sets the callbacks of discovery and registration.
func (rt *Runtime) configure(cfg Config) {
	rt.Watcher.Launched, rt.Watcher.FileEventsLost = rt.launchAt, cfg.Observer.FileEventsLost
	r := &rt.Watcher.Registration
	r.Observe, r.OnTransition = rt.observe, func(e plugin.Event) { rt.journal.Pass(e) }
	r.Attempted, r.Refused, r.Tracer, r.Logger = cfg.Observer.Attempt, cfg.Observer.Refused, cfg.Observer.Tracer, cfg.Logger
	r.NameGrace = cmp.Or(r.NameGrace, defaultNameGrace)
}

// absolute makes all paths absolute, so that they mean the same whatever happens to the working directory.
func (c *Config) absolute() error {
	dirs := slices.Clone(c.Pipeline.Dirs)
	c.Pipeline.Dirs = dirs
	paths := []*string{&c.Pipeline.DeprecatedDir, &c.SurvivorDir, &c.EventsPath}
	for i, dir := range dirs {
		if dir == "" {
			return errors.New("one of Config.PluginDirs is empty")
		}
		paths = append(paths, &dirs[i])
	}
	return regular.Absolute(paths...)
}

// Reconsider immediately retries every plugin that was refused or failed. Call it after the rules have changed, for example those of a
// handler or an admission plugin. It may be called at any time and does not block.
func (rt *Runtime) Reconsider() {
	if r := rt.Reconciler(); r != nil {
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

// Plugins returns the status of all known plugins and sockets, sorted by type and name, newest instance first. It includes plugins that
// others put into the registry.
func (rt *Runtime) Plugins() []plugin.Status {
	statuses, running := rt.Watcher.Plugins()
	statuses = append(statuses, pipeline.Statuses(rt.registry, "", running)...)
	rt.markIdle(statuses)
	return inOrder(rt.withUnknown(statuses))
}

// PluginsNamed is Plugins of those that announced one name, of any type. It costs little, however many other plugins there are.
func (rt *Runtime) PluginsNamed(name string) []plugin.Status {
	r := rt.Reconciler()
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
	if r := rt.Reconciler(); r != nil {
		return r.Refusals()
	}
	return nil
}

// ConditionDirectories names the [plugin.Condition] that is degraded while directories or sockets of users other than root and the host's
// own cause trouble, for example because there are too many, or after file events were lost. The host's own plugins are found regardless.
const ConditionDirectories = "directories"

// ConditionEvents names the [plugin.Condition] that is degraded while events cannot be kept in Config.EventsPath. Plugins register
// regardless.
const ConditionEvents = "events"

// Conditions returns the Runtime's conditions: [ConditionDirectories], [ConditionEvents] if there is a Config.EventsPath, and "discovery",
// which is degraded while something owned by root or the host's user keeps plugins from being found in time.
func (rt *Runtime) Conditions() []plugin.Condition {
	var own, others []dirwatch.Condition
	for _, c := range rt.Watcher.Conditions() {
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
