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

// markIdle sets the state of registered plugins whose process is started on demand.
func (rt *Runtime) markIdle(statuses []plugin.Status) {
	for i, s := range statuses {
		if s.Source == plugin.SourceLaunched && s.State == plugin.StateRegistered {
			if _, state, _ := rt.launcher.FrontAt(s.SocketPath); state == plugin.StateIdle {
				statuses[i].State = plugin.StateIdle
			}
		}
	}
}

// withUnknown adds the launched plugins that have no status in the pipeline, because they do not serve.
func (rt *Runtime) withUnknown(known []plugin.Status) []plugin.Status {
	statuses := known
	for _, p := range rt.launcher.Plugins() {
		serves := func(s plugin.Status) bool { return p.Socket != "" && s.SocketPath == p.Socket }
		if slices.ContainsFunc(known, serves) {
			continue
		}
		statuses = append(statuses, plugin.Status{
			Name: p.Name, State: p.State, Source: plugin.SourceLaunched, SocketPath: p.Socket,
			FirstSeen: p.Since, Since: p.Since, Attempts: p.Restarts, NextRetry: p.NextStart, LastError: p.LastError,
		})
	}
	return statuses
}
