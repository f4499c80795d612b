package pluginruntime

import (
	"context"
	"math"
	"os"
	"slices"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/launch/account"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// launchAt implements [pipeline.Watcher].Launched.
func (rt *Runtime) launchAt(path string) pipeline.Launch {
	if p := rt.host.PluginAt(path); p != nil {
		return process{p}
	}
	if p, _, ok := rt.launcher.FrontAt(path); ok {
		return front{p}
	}
	return nil
}

// front is the [pipeline.Launch] of a launched plugin on whose socket this process listens.
type front struct{ launcher.Plugin }

func (front) ServesAt(string) bool { return true } // a front has only one socket

func (front) Owns(_ context.Context, pid int) bool { return pid == os.Getpid() }

func (f front) Name() string { return f.Plugin.Name }

// RegisteredFor returns the user and group of the plugin: the account of what it registers.
func (f front) RegisteredFor() (uid, gid uint32, ok bool) {
	if f.User == "" {
		return 0, 0, false
	}
	uid, gid, err := account.IDs(f.User, f.Group)
	if err != nil {
		return math.MaxUint32, math.MaxUint32, true // an account that does not exist
	}
	return uid, gid, true
}

// Introduction returns nil: the front answers GetInfo itself.
func (front) Introduction() []byte { return nil }

// process is the [pipeline.Launch] of the process of a launched plugin.
type process struct{ *host.PluginProcess }

// ServesAt reports whether path is that of the plugin's socket, and not another one in its directory.
func (p process) ServesAt(path string) bool { return p.PluginSocket() == path }

func (p process) Owns(ctx context.Context, pid int) bool {
	select {
	case <-p.Started():
		_, _, registered := p.RegisteredFor()
		return p.PluginProcess.Owns(pid) || registered && pid == os.Getpid()
	case <-ctx.Done():
		return false
	}
}

// withLaunched adds to the statuses of launched instances those of their launched plugins. With all, it appends the launched plugins that
// have no instance: they do not serve, or are not running.
func (rt *Runtime) withLaunched(statuses []plugin.Status, all bool) []plugin.Status {
	isLaunched := func(s plugin.Status) bool { return s.Source == plugin.SourceLaunched }
	if !all && !slices.ContainsFunc(statuses, isLaunched) {
		return statuses
	}
	launched := rt.launcher.Plugins()
	at := make(map[string]*plugin.LaunchStatus, len(launched)) // by socket
	for i := range launched {
		at[launched[i].Socket] = &launched[i]
	}
	delete(at, "")
	found := make(map[*plugin.LaunchStatus]bool, len(launched))
	for i := range statuses {
		s := &statuses[i]
		l := at[s.SocketPath]
		if l == nil {
			continue
		}
		s.Launch, found[l] = l, true
		if l.State == plugin.StateIdle && s.State == plugin.StateRegistered {
			s.State = plugin.StateIdle
		}
	}
	for i := range launched {
		if l := &launched[i]; all && !found[l] {
			statuses = append(statuses, plugin.Status{
				Name: l.Name, State: l.State, Source: plugin.SourceLaunched, SocketPath: l.Socket, FirstSeen: l.Since, Since: l.Since,
				Attempts: l.Restarts, NextRetry: l.NextStart, LastError: l.LastError, FailingSince: l.FailingSince, Launch: l,
			})
		}
	}
	return statuses
}
