package patchbay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/launch/entrance"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// Host returns the host of launched plugins. What it launches is not supervised; [Runtime.Launcher] does that. Run closes it.
func (rt *Runtime) Host() *host.Host { return rt.host }

// Launcher returns what launches plugins and keeps them running. It can be used at any time; Run closes it.
func (rt *Runtime) Launcher() *launcher.Launcher { return rt.launcher }

// Admission returns what Config.Admission returned; nil if every plugin may be registered.
func (rt *Runtime) Admission() plugin.AdmissionPlugin { return rt.admission }

// newLaunching makes the host and the launcher, and says what is asked before a plugin is registered; nil if every one may be. Nothing is
// started yet.
func (rt *Runtime) newLaunching(cfg Config) (mayRegister func(context.Context, reconciler.Instance) error, err error) {
	rt.host = &host.Host{
		PluginsContext: host.WithLogger(context.Background(), cfg.Logger),
		Events:         rt.observeHost,
		Logger:         cfg.Logger,
		StateDir:       cfg.SurvivorDir,
	}
	if err := rt.host.Initialize(cfg.Host); err != nil {
		return nil, err
	}
	var mayRun func(context.Context, plugin.Pin) error
	if cfg.Admission != nil {
		if rt.admission, err = cfg.Admission(rt.host); err != nil {
			return nil, err
		}
		if rt.admission == nil {
			return nil, errors.New("Config.Admission returned neither a plugin nor an error: leave Config.Admission nil to admit every plugin")
		}
		e := entrance.New(rt.host, rt.admission)
		mayRun, mayRegister = e.MayRun, e.MayRegister
	}
	rt.launcher = launcher.New(launcher.Config{
		Host:            rt.host,
		Admit:           mayRun,
		Dir:             cmp.Or(append(slices.Clone(cfg.PluginDirs), cfg.DeprecatedPluginDir)...),
		AwaitRegistered: rt.awaitSocket,
		Observe:         rt.observeLauncher,
		Output:          cfg.Logger.Handler(),
	})
	return mayRegister, nil
}

// observeHost makes an event of what the host tells.
func (rt *Runtime) observeHost(e host.Event) {
	rt.events.observe(reconciler.Event{Time: e.Time, Kind: reconciler.EventKind(e.Kind), Name: e.Plugin, Message: e.Message})
}

func (rt *Runtime) observeLauncher(e launcher.Event) {
	rt.events.observe(reconciler.Event{
		Time: e.Time, Kind: reconciler.EventKind(e.Kind), Name: e.Name, SocketPath: e.Socket, Message: e.Message,
	})
}

// source says how a plugin whose socket is at this path came.
func (rt *Runtime) source(socketPath string) reconciler.Source {
	// It may serve before its start has returned here.
	if p := rt.host.PluginAt(socketPath); p != nil && p.PluginSocket() == socketPath {
		return reconciler.SourceLaunched
	}
	return reconciler.SourceDiscovered
}

// launchedAt returns the plugin that was launched to serve at a path, or in a directory; nil if there is none.
func (rt *Runtime) launchedAt(path string) pluginwatcher.Launch {
	if p := rt.host.PluginAt(path); p != nil {
		return launch{p}
	}
	return nil
}

// launch is a launched plugin as discovery sees it.
type launch struct{ process *host.PluginProcess }

func (l launch) Owns(ctx context.Context, pid int) bool {
	select {
	case <-l.process.Started():
		return l.process.Owns(pid)
	case <-ctx.Done():
		return false
	}
}

// awaitSocket waits until the plugin behind a socket is registered. A refusal in the meantime is an error.
func (rt *Runtime) awaitSocket(ctx context.Context, socketPath string) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	events := rt.Events(watching, 0)
	registered := func(s PluginStatus) bool {
		// A newer instance may have come before anybody looked here.
		return s.SocketPath == socketPath && (s.State == reconciler.StateRegistered || s.State == reconciler.StateSuperseded)
	}
	for {
		if statuses, _ := rt.watcher.Plugins(); slices.ContainsFunc(statuses, registered) {
			return nil
		}
		for concerned := false; !concerned; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case e, open := <-events:
				if !open {
					return cmp.Or(ctx.Err(), dynamicplugins.ErrShutdown)
				}
				if e.SocketPath == socketPath && (e.Kind == reconciler.EventRefused || e.Kind == reconciler.EventIgnored) {
					return fmt.Errorf("it was %s: %s", e.Kind, e.Message)
				}
				concerned = e.SocketPath == socketPath || e.Kind == EventResync
			}
		}
	}
}

// launchedStatuses describes the launched plugins that the pipeline does not know: those that do not serve, or not yet, or not any more.
func (rt *Runtime) launchedStatuses(known []PluginStatus) []PluginStatus {
	var statuses []PluginStatus
	for _, l := range rt.launcher.Plugins() {
		serves := func(s PluginStatus) bool { return l.Socket != "" && s.SocketPath == l.Socket }
		if slices.ContainsFunc(known, serves) {
			continue
		}
		statuses = append(statuses, PluginStatus{
			Name: l.Name, State: reconciler.State(l.State), Source: reconciler.SourceLaunched, SocketPath: l.Socket,
			FirstSeen: l.Since, Since: l.Since, Attempts: l.Restarts, NextRetry: l.NextStart, LastError: l.LastError,
		})
	}
	return statuses
}

// endLaunched ends all launched plugins. They go while the pipeline still runs, which deregisters them.
func (rt *Runtime) endLaunched() {
	rt.launcher.Close()
	ending, cancel := context.WithTimeout(context.Background(), hostCloseTimeout)
	defer cancel()
	if rt.admission != nil {
		rt.admission.Close(ending)
	}
	rt.host.Close(ending)
}

// hostCloseTimeout is how long launched plugins that nobody supervises may take to end.
const hostCloseTimeout = 10 * time.Second

// runUntil runs the pipeline until ctx ends and all launched plugins have ended.
func (rt *Runtime) runUntil(ctx context.Context) error {
	piping, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan struct{})
	closing := func() {
		defer close(ended)
		rt.endLaunched()
		stop()
	}
	hook := context.AfterFunc(ctx, closing)
	err := rt.watcher.Run(piping)
	if hook() {
		closing() // the pipeline ended first
	}
	<-ended
	return err
}
