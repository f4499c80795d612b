package pluginruntime

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/keeper"
	"github.com/patchbay-dev/patchbay/internal/launch/supervise"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Host returns the host of launched plugins. What it launches is not supervised; [Runtime.Launcher] does that. Run closes it.
func (rt *Runtime) Host() *host.Host { return rt.host }

// Launcher returns the launcher, which starts plugins and keeps them running. It can be used at any time; Run closes it.
func (rt *Runtime) Launcher() *launcher.Launcher { return rt.launcher }

// Admission returns the result of NewAdmission; nil if every plugin is admitted.
func (rt *Runtime) Admission() plugin.AdmissionPlugin { return rt.admission }

// openLauncher creates the host, the admission plugin and the launcher. It starts no process.
func (rt *Runtime) openLauncher() (err error) {
	rt.host = &host.Host{
		PluginsContext: host.WithLogger(context.Background(), rt.Logger),
		Events:         func(e host.Event) { rt.journal.ObserveLaunched(e.Event) },
		Logger:         rt.Logger,
		StateDir:       rt.SurvivorDir,
	}
	if err := rt.host.Initialize(rt.HostConfig); err != nil {
		return err
	}
	var mayRun func(context.Context, plugin.Pin) error
	if rt.NewAdmission != nil {
		if rt.admission, err = rt.NewAdmission(rt.host); err != nil {
			return err
		}
		if rt.admission == nil {
			return errors.New("Config.Admission returned neither a plugin nor an error: leave Config.Admission nil to admit every plugin")
		}
		mayRun = func(ctx context.Context, pin plugin.Pin) error { return rt.admission.CheckAdmission(pin).Wait(ctx) }
	}
	rt.launcher = launcher.New(launcher.Config{
		Host:          rt.host,
		Admit:         mayRun,
		Dir:           cmp.Or(append(slices.Clone(rt.Dirs), rt.DeprecatedDir)...),
		Registrations: registrations{rt},
		Observe:       rt.observeLauncher,
		OnCallsLimited: func(uid uint32, reason string, first bool) {
			if rt.Observer.CallsLimited != nil {
				rt.Observer.CallsLimited(reason)
			}
			if first {
				rt.Logger.Warn("calls of plugins that this process answers for "+h2proxy.Reason(reason).Consequence(), "uid", uid, "reason", reason)
			}
		},
		Output: rt.Logger.Handler(),
	})
	return nil
}

// blocked returns why a launched plugin was refused, as a [supervise.BlockedError] if its type has no handler.
func (rt *Runtime) blocked(ptype string, why error) error {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	if ptype == "" || pipeline.AwaitHandler(now, rt.Watcher, ptype) {
		return why
	}
	return &supervise.BlockedError{Err: why, AwaitChange: func(ctx context.Context) { pipeline.AwaitHandler(ctx, rt.Watcher, ptype) }}
}

// registrations implements [launcher.Registrations].
type registrations struct{ *Runtime }

func (rt registrations) AwaitRegistered(ctx context.Context, socket string, refused func(error)) error {
	return pipeline.AwaitRegistered(ctx, rt.Watcher, socket, func(ptype string, why error) { refused(rt.blocked(ptype, why)) })
}

// Announced also knows plugins that were registered when an earlier host ended.
func (rt registrations) Announced(socket string) (plugin.Info, bool) {
	for _, in := range rt.registry.Instances("", "") {
		if r := in.Info.Instance; r != nil && !in.Info.IsRole() && r.SocketPath == socket {
			return plugin.Info{Type: in.Info.Type, Name: in.Info.Name, Versions: r.Versions}, true
		}
	}
	return plugin.Info{}, false
}

// observe adds an event of a plugin to the journal, and notifies the launcher if the socket of a registered plugin was removed.
func (rt *Runtime) observe(e plugin.Event) {
	rt.journal.Observe(e)
	if e.Kind == plugin.EventUnlinked {
		rt.launcher.SocketRemoved(e.SocketPath)
	}
}

// replaceTimeout is how long callers of a plugin wait while its process is replaced.
const replaceTimeout = 30 * time.Second

// observeLauncher adds an event of a launched plugin to the journal. While a process is replaced, callers of the plugin wait until the
// launcher's next event for it. It runs under the launcher's locks.
func (rt *Runtime) observeLauncher(e plugin.Event) {
	rt.mu.Lock()
	if end := rt.replacing[e.Name]; end != nil {
		end()
		delete(rt.replacing, e.Name)
	}
	if name, instance, known := rt.journal.InstanceOf(e.Name, e.SocketPath); known && e.Kind == plugin.EventReplacing {
		ctx, end := context.WithTimeout(context.Background(), replaceTimeout)
		rt.replacing[e.Name] = end
		keeper.Of[*dynamicplugins.PluginInfo](rt.registry).Replacing(ctx, name.Type, name.Name, instance)
	}
	rt.mu.Unlock()
	rt.journal.ObserveLaunched(e)
}

// runUntil runs the pipeline until ctx ends and all launched plugins have ended.
func (rt *Runtime) runUntil(ctx context.Context) error {
	piping, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan struct{})
	closing := func() {
		defer close(ended)
		rt.closeLaunched()
		stop()
	}
	hook := context.AfterFunc(ctx, closing)
	err := rt.Watcher.Run(piping)
	if hook() {
		closing() // the pipeline ended first
	}
	<-ended
	rt.launcher.CloseFronts()
	return err
}

// closeTimeout is how long launched plugins that nobody supervises may take to end.
const closeTimeout = 10 * time.Second

// closeLaunched stops all that was launched, and blocks until it has ended.
func (rt *Runtime) closeLaunched() {
	rt.launcher.Close()
	ending, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if rt.admission != nil {
		rt.admission.Close(ending)
	}
	rt.host.Close(ending)
}
