package patchbay

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/entrance"
	"github.com/patchbay-dev/patchbay/internal/frames"
	"github.com/patchbay-dev/patchbay/internal/launch/supervise"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// Host returns the host of launched plugins. What it launches is not supervised; [Runtime.Launcher] does that. Run closes it.
func (rt *Runtime) Host() *host.Host { return rt.launched.Host }

// Launcher returns the launcher, which starts plugins and keeps them running. It can be used at any time; Run closes it.
func (rt *Runtime) Launcher() *launcher.Launcher { return rt.launched.Launcher }

// Admission returns what Config.Admission returned; nil if every plugin may be registered.
func (rt *Runtime) Admission() plugin.AdmissionPlugin { return rt.launched.Admission }

// newLaunching makes the host and the launcher, and says what is asked before a plugin is registered; nil if every one may be. Nothing is
// started yet.
func (rt *Runtime) newLaunching(cfg Config) (mayRegister func(context.Context, reconciler.Instance) error, err error) {
	h := &host.Host{
		PluginsContext: host.WithLogger(context.Background(), cfg.Logger),
		Events:         rt.journal.ObserveHost,
		Logger:         cfg.Logger,
		StateDir:       cfg.SurvivorDir,
	}
	if err := h.Initialize(cfg.Host); err != nil {
		return nil, err
	}
	rt.launched.Host = h
	var mayRun func(context.Context, plugin.Pin) error
	if cfg.Admission != nil {
		admission, err := cfg.Admission(h)
		if err != nil {
			return nil, err
		}
		if admission == nil {
			return nil, errors.New("Config.Admission returned neither a plugin nor an error: leave Config.Admission nil to admit every plugin")
		}
		rt.launched.Admission = admission
	}
	if e := entrance.New(h, rt.launched.Admission, cfg.LaunchedOnly, rt.answers); rt.launched.Admission != nil {
		mayRun, mayRegister = e.MayRun, e.MayRegister
	} else if cfg.LaunchedOnly {
		mayRegister = e.MayRegister
	}
	rt.launched.Launcher = launcher.New(launcher.Config{
		Host:  h,
		Admit: mayRun,
		Dir:   cmp.Or(append(slices.Clone(cfg.PluginDirs), cfg.DeprecatedPluginDir)...),
		AwaitRegistered: func(ctx context.Context, socketPath string, refused func(error)) error {
			return rt.journal.AwaitRegistered(ctx, socketPath, rt.discovered, func(ptype string, why error) { refused(rt.blocked(ptype, why)) })
		},
		Announced: rt.announced,
		Observe:   rt.observeLauncher,
		Limited: func(uid uint32, reason string, first bool) {
			if cfg.Observer.CallsLimited != nil {
				cfg.Observer.CallsLimited(reason)
			}
			if first {
				cfg.Logger.Warn("calls of plugins that this process answers for "+frames.Reason(reason).Consequence(), "uid", uid, "reason", reason)
			}
		},
		Output: cfg.Logger.Handler(),
	})
	return mayRegister, nil
}

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// blocked returns why a launched plugin was refused, as a [supervise.BlockedError] if its type has no handler.
func (rt *Runtime) blocked(ptype string, why error) error {
	if ptype == "" || pipeline.AwaitHandler(ended, rt.watcher, ptype) {
		return why
	}
	return &supervise.BlockedError{Err: why, AwaitChange: func(ctx context.Context) { pipeline.AwaitHandler(ctx, rt.watcher, ptype) }}
}

// answers says whether this process answers at a socket for a launched plugin, whose callers then do not notice which process serves.
func (rt *Runtime) answers(socket string) bool {
	_, is := rt.launched.Launcher.FrontAt(socket)
	return is
}

// announced says as what the plugin behind a socket is registered, or was when its host ended.
func (rt *Runtime) announced(socket string) (launcher.Announcement, bool) {
	for _, in := range rt.registry.Instances("", "") {
		if r := in.Info.Record; r != nil && r.RoleOf == "" && r.SocketPath == socket {
			return launcher.Announcement{Type: in.Info.Type, Name: in.Info.Name, Versions: r.Versions}, true
		}
	}
	return launcher.Announcement{}, false
}

// observe is told what happens to plugins. Where the socket of a launched one was removed nobody finds it any more.
func (rt *Runtime) observe(e reconciler.Event) {
	rt.journal.Observe(e)
	if e.Kind == reconciler.EventUnlinked {
		rt.launched.Launcher.SocketRemoved(e.SocketPath)
	}
}

// replaceTimeout is how long callers of a plugin wait while its process is replaced.
const replaceTimeout = 30 * time.Second

// observeLauncher is told what happens to launched plugins. Callers of one whose process is replaced wait until there is news of the next.
func (rt *Runtime) observeLauncher(e launcher.Event) {
	rt.mu.Lock()
	if end := rt.replacing[e.Name]; end != nil {
		end()
		delete(rt.replacing, e.Name)
	}
	if ptype, name, instance, known := rt.journal.InstanceOf(e.Name, e.Socket); known && e.Kind == launcher.EventReplacing {
		ctx, end := context.WithTimeout(context.Background(), replaceTimeout)
		rt.replacing[e.Name] = end
		rt.registry.Replacing(ctx, ptype, name, instance)
	}
	rt.mu.Unlock()
	rt.journal.ObserveLauncher(e)
}

// discovered describes the plugins that the pipeline knows.
func (rt *Runtime) discovered() []PluginStatus {
	statuses, _ := rt.watcher.Plugins()
	return statuses
}

// runUntil runs the pipeline until ctx ends and all launched plugins have ended.
func (rt *Runtime) runUntil(ctx context.Context) error {
	piping, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan struct{})
	closing := func() {
		defer close(ended)
		rt.launched.Close()
		stop()
	}
	hook := context.AfterFunc(ctx, closing)
	err := rt.watcher.Run(piping)
	if hook() {
		closing() // the pipeline ended first
	}
	<-ended
	rt.launched.Launcher.Withdraw()
	return err
}
