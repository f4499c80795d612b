// Package pluginruntime runs the parts of a host together: discovery and registration, the registry, the launcher, admission and the
// events. Package patchbay is its public face; the daemon uses it directly, for what only the daemon needs.
//
// It is not for users of this module.
package pluginruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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

// Runtime is what patchbay.Runtime exports, and what only the daemon needs. The exported fields are set before [Runtime.Open], and are
// documented at patchbay.Config. The other methods can be called after Open, and are safe for concurrent use.
type Runtime struct {
	// Watcher discovers and registers plugins. Open sets its callbacks, its Trust and its Logger.
	*pipeline.Watcher

	State           dynamicplugins.StateStorage
	Dispensers      map[string]dynamicplugins.PluginDispenser
	RegistryOptions []dynamicplugins.Option
	HostConfig      plugin.Config
	TrustPolicy     trust.Policy
	NewAdmission    func(*host.Host) (plugin.AdmissionPlugin, error)
	LaunchedOnly    bool
	SurvivorDir     string
	EventsPath      string
	Observer        Observer
	Logger          *slog.Logger

	registry  *dynamicplugins.Store
	journal   *journal.Journal
	host      *host.Host
	launcher  *launcher.Launcher
	admission plugin.AdmissionPlugin // nil if everything is admitted
	programs  sealedexec.Programs

	mu        sync.Mutex
	ran       bool
	replacing map[string]context.CancelFunc // ends the wait of callers, by launched plugins whose process is being replaced
}

// Open loads the state. It returns an error if the state or the configuration is unusable. Nothing is watched before [Runtime.Run].
func (rt *Runtime) Open() error {
	if err := rt.open(); err != nil {
		return fmt.Errorf("cannot create a plugin runtime: %w", err)
	}
	return nil
}

func (rt *Runtime) open() error {
	watcher, registration := rt.Watcher, &rt.Registration
	if len(watcher.Dirs) == 0 && watcher.DeprecatedDir == "" {
		return errors.New("Config.PluginDirs is empty; name a directory in which plugins put their sockets")
	}
	if rt.Logger == nil {
		rt.Logger = slog.New(slog.DiscardHandler)
	}
	if err := cmp.Or(rt.makeAbsolute(), regular.Check(rt.EventsPath)); err != nil {
		return err
	}
	rt.replacing = map[string]context.CancelFunc{}
	rt.Observer = rt.Observer.guarded(rt.Logger)
	watcher.Launched, watcher.FileEventsLost = rt.launchAt, rt.Observer.FileEventsLost
	registration.Observe, registration.OnTransition = rt.observe, func(e plugin.Event) { rt.journal.Pass(e) }
	registration.Attempted, registration.Refused = rt.Observer.Attempt, rt.Observer.Refused
	registration.Tracer, registration.Logger = rt.Observer.Tracer, rt.Logger
	registration.TypeTimeouts = maps.Clone(registration.TypeTimeouts)
	registration.NameGrace = cmp.Or(registration.NameGrace, defaultNameGrace)
	err := watcher.Validate()
	if err != nil {
		return err
	}
	if watcher.Trust, err = trustjudge.New(rt.TrustPolicy); err != nil {
		return fmt.Errorf("trust.%w", err)
	}
	rt.registry, err = dynamicplugins.Open(rt.State, rt.Dispensers, append([]dynamicplugins.Option{
		dynamicplugins.WithStatsHandlers(rt.Observer.StatsHandlers...),
		dynamicplugins.WithObserver(dynamicplugins.Observer{Dispense: rt.Observer.Dispense, Resync: rt.Observer.Resync}),
	}, rt.RegistryOptions...)...)
	if err != nil {
		return err
	}
	store := keeper.Of[*dynamicplugins.PluginInfo](rt.registry)
	store.CheckConns(pipeline.Judge(watcher.Trust))
	rt.journal = journal.New(rt.Logger, rt.EventsPath, rt.Observer.Event, rt.Observer.Resync)
	if err := rt.openLauncher(); err != nil {
		return err
	}
	if rt.admission != nil || rt.LaunchedOnly {
		registration.Admit = rt.mayRegister
	}
	registration.Registry = pipeline.RegistryOf(rt.registry)
	registration.Restored = pipeline.Restored(rt.registry, rt.Logger)
	registration.Names = store.Reservations()
	return nil
}

// makeAbsolute makes all paths absolute, so that a later change of the working directory has no effect on them.
func (rt *Runtime) makeAbsolute() error {
	dirs := slices.Clone(rt.Dirs)
	rt.Dirs = dirs
	paths := []*string{&rt.DeprecatedDir, &rt.SurvivorDir, &rt.EventsPath}
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
	// Events of the shutdown are written too.
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
	return sorted(rt.withLaunched(statuses, true))
}

// PluginsNamed is Plugins for the plugins of any type that announced a name.
func (rt *Runtime) PluginsNamed(name string) []plugin.Status {
	r := rt.Reconciler()
	statuses := pipeline.Statuses(rt.registry, name, r != nil)
	if r != nil {
		statuses = append(r.PluginsNamed(name), statuses...)
	}
	return sorted(rt.withLaunched(statuses, false))
}

func sorted(statuses []plugin.Status) []plugin.Status {
	slices.SortStableFunc(statuses, func(a, b plugin.Status) int { return a.PluginName().Compare(b.PluginName()) })
	return statuses
}

// Refusals returns the last refusal of each plugin that is gone and has not been registered since, for example of a plugin that exits when
// it is refused. The state is refused, LastError the reason and Since the time. The order is that of Plugins. The newest 64 of each user,
// and 1,024 in total, are kept in memory.
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

// condition combines conditions of plugin directories.
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
