package launcher

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/launch"
	"github.com/patchbay-dev/patchbay/internal/launch/machine"
	"github.com/patchbay-dev/patchbay/internal/launch/supervise"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// The errors that a caller may act on.
var (
	// ErrUnknown: the launcher has no plugin of that name.
	ErrUnknown = errors.New("no such launched plugin")
	// ErrProgram: the program of a plugin does not exist, or cannot be executed.
	ErrProgram = errors.New("its program cannot be executed")
	// ErrClosed: the launcher is closed.
	ErrClosed = machine.ErrClosed
	// ErrReplacement: a replacement did not become ready. The old process keeps running, unless it had to end first.
	ErrReplacement = machine.ErrReplacement
)

// State is what a launched plugin does.
type State = machine.State

// The states of a launched plugin.
const (
	StateStarting     = machine.StateStarting
	StateRunning      = machine.StateRunning
	StateUnresponsive = machine.StateUnresponsive
	StateUnlinked     = machine.StateUnlinked
	StateStopping     = machine.StateStopping
	StateBackoff      = machine.StateBackoff
	StateFailed       = machine.StateFailed
	StateBlocked      = machine.StateBlocked
	StateIdle         = machine.StateIdle
	StateStopped      = machine.StateStopped
)

type (
	// Status describes a launched plugin.
	Status = machine.Status
	// Event says what happened to a launched plugin.
	Event = machine.Event
)

// Plugin is a plugin to launch. The fields that are not set have the defaults of the configuration, except in Spec, where Env, Dir and
// NoNewPrivs are as in package host.
type Plugin struct {
	// Spec describes its processes. Its Name is unique among the launched plugins and has the syntax of a file name; its Env is the whole
	// environment unless it is nil. The launcher sets PluginSocket, Admit, Tag and Adapter.
	host.Spec
	// NoSocket is for a program that does not serve: it is ready when it has run for a moment. All others get a socket path in the plugin
	// directory, and are ready when they are registered. A plugin with a user or group gets a directory of its own in the plugin directory.
	NoSocket bool
	// Protocol launches a plugin that speaks a protocol unknown to the host, and must serve; nil for all others. It is compared with that of
	// an earlier configuration by [reflect.DeepEqual].
	Protocol Protocol
	// Manual plugins are started by [Launcher.Start] only.
	Manual bool
	// OnDemand has the plugin started by the first call, and ended when no call has been under way for Idle (default 5 min). It must serve.
	// The host answers at its socket in its place, and forwards calls; so it is registered whether it runs or not. The plugin is called by
	// the host then. It is started again after a failure when somebody needs it, whatever Restart.Restart says.
	OnDemand bool
	Idle     time.Duration
	// Announce is what the plugin says of itself, with which it is registered before it has run. Without a Type it is what the plugin said
	// last; if nobody knows that, it is started once to say so.
	Announce plugin.Info
	// Restart says when it is started again.
	Restart plugin.RestartPolicy
	// Upgrade says how a new process takes the place of an old one.
	Upgrade plugin.Upgrade
	// Health says how its health is checked.
	Health plugin.HealthCheck
	// StartTimeout is how long a process that serves may take from its start until it is ready (default 1 min). One that takes longer is
	// stopped, as a failure.
	StartTimeout time.Duration
	// LogRate is how many lines of output per second are kept (default 1,000; negative for no limit).
	LogRate int
}

// Protocol launches a plugin with a host, in the place of [host.Host.Launch]. It may take its time until the plugin is met; the end of ctx
// ends that, and the process. Ctx has the deadline of the plugin's StartTimeout, and ends when Launch has returned.
type Protocol interface {
	Launch(ctx context.Context, h *host.Host, spec host.Spec) (*host.PluginProcess, error)
}

// identity tells whether a process that survived is of this plugin as it is configured now: all that its processes notice of it, but for
// what two hosts cannot compare. It is empty if none may survive.
func (p Plugin) identity() string {
	if !p.Survive {
		return ""
	}
	spec := p.Spec
	spec.Controller, spec.ExtraFiles, spec.StopTimeout = nil, nil, 0
	digest := sha256.Sum256(fmt.Appendf(nil, "%#v %t", spec, !p.NoSocket))
	return hex.EncodeToString(digest[:8])
}

func (p Plugin) about() machine.Description {
	restart := p.Restart
	if p.OnDemand {
		restart.Policy = machine.OnDemand
	}
	return machine.Description{
		Identity: p.identity(), Serves: !p.NoSocket, Survives: p.Survive, Upgrade: p.Upgrade, Restart: restart, StartTimeout: p.startTimeout(),
	}
}

// same says whether a process of the other one need not be replaced. The process notices nothing of what is not compared.
func (p Plugin) same(other Plugin) bool {
	fronted := p.fronted() == other.fronted()
	p.LogRate, p.Upgrade, p.Idle, p.Announce = other.LogRate, other.Upgrade, other.Idle, other.Announce
	return fronted && reflect.DeepEqual(p, other)
}

// checks is how the health of a process that serves at a socket is checked.
func (p Plugin) checks(socket string) supervise.Checks {
	return supervise.Checks{HealthCheck: plugin.HealthCheck{
		Interval: cmp.Or(p.Health.Interval, launch.DefaultHealthInterval), Timeout: cmp.Or(p.Health.Timeout, launch.DefaultHealthTimeout),
		Misses: cmp.Or(p.Health.Misses, launch.DefaultHealthMisses),
	}, Pending: h2proxy.PendingAt(socket)}
}

func (p Plugin) startTimeout() time.Duration {
	return cmp.Or(p.StartTimeout, launch.DefaultStartTimeout)
}

func (p Plugin) stopTimeout() time.Duration { return cmp.Or(p.StopTimeout, launch.DefaultStopTimeout) }

func (l *Launcher) check(p Plugin) error {
	switch {
	case !nameText.MatchString(p.Name):
		return fmt.Errorf("cannot launch plugin %q: a name has 1 to 128 letters, digits, dots, dashes and underscores, "+
			"and begins with a letter or digit", p.Name)
	case p.PluginSocket != "" || p.Admit != nil || p.Tag != "" || p.Adapter != nil:
		return fmt.Errorf("cannot launch plugin %s: the launcher itself sets the PluginSocket, Admit, Tag and Adapter of its Spec",
			p.Name)
	case p.Protocol != nil && (p.NoSocket || p.Survive):
		return fmt.Errorf("cannot launch plugin %s: with its protocol it must serve and cannot survive its host", p.Name)
	case p.OnDemand && p.NoSocket:
		return fmt.Errorf("cannot launch plugin %s: one that is started on demand must serve, so that somebody can call it", p.Name)
	case p.fronted() && p.Survive:
		return fmt.Errorf("cannot launch plugin %s: one that is started on demand or handed over cannot survive its host, which answers for it",
			p.Name)
	case len(p.Args) == 0 || p.Args[0] == "":
		return fmt.Errorf("cannot launch plugin %s: it has no command", p.Name)
	case !slices.Contains(upgrades, p.Upgrade) || !slices.Contains(restarts, p.Restart.Policy):
		return fmt.Errorf("cannot launch plugin %s: its Upgrade %q or its Restart.Policy %q is unknown: use the constants of package plugin",
			p.Name, p.Upgrade, p.Restart.Policy)
	case !p.NoSocket && l.cfg.AwaitRegistered == nil:
		return fmt.Errorf("cannot launch plugin %s: it must serve, and the launcher has no AwaitRegistered", p.Name)
	case min(p.Idle, p.Restart.Backoff.Min, p.Restart.Backoff.Max, p.Restart.Window) < 0:
		return fmt.Errorf("cannot launch plugin %s: its Idle or a duration of its Restart is negative", p.Name)
	case min(p.Health.Interval, p.Health.Timeout) < 0 || p.Health.Misses < 0:
		return fmt.Errorf("cannot launch plugin %s: the Interval, Timeout and Misses of its Health must not be below zero", p.Name)
	case p.Survive && l.cfg.Host.StateDir == "":
		return fmt.Errorf("cannot launch plugin %s: it must survive its host, which has no directory to remember it in: set the "+
			"StateDir of the host", p.Name)
	}
	if err := p.Spec.Validate(); err != nil { //nolint:staticcheck // of the Spec alone
		return fmt.Errorf("cannot launch plugin %s: %w", p.Name, err)
	}
	return nil
}

// What the fields of these types may be.
var (
	upgrades = []plugin.Upgrade{"", plugin.UpgradeSideBySide, plugin.UpgradeHandover, plugin.UpgradeRecreate}
	restarts = []plugin.Restart{"", plugin.RestartOnFailure, plugin.RestartAlways, plugin.RestartNever}
)

var nameText = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$`)

// manyProcesses is more processes than a plugin has during one run of its host.
const manyProcesses = 999_999

// CheckSocket returns an error if the paths of a plugin's sockets in a plugin directory would be too long for a Unix socket.
func (p Plugin) CheckSocket(dir string) error {
	if p.NoSocket {
		return nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if p.fronted() {
		dir = filepath.Join(dir, behindName)
	}
	if path, _ := socketPath(dir, p.Name, manyProcesses, p.needsRoom()); len(path) > sock.MaxPath {
		return fmt.Errorf("its sockets in plugin directory %s have paths of up to %d bytes, such as %s, and the path of a socket may have %d: "+
			"choose a shorter name or plugin directory", dir, len(path), path, sock.MaxPath)
	}
	if checker, ok := p.Protocol.(interface{ CheckDir(dir string) error }); ok {
		return checker.CheckDir(dir)
	}
	return nil
}

// needsRoom says whether a plugin that serves needs a directory in which to make its socket: one that runs as somebody else does. For one
// of a foreign protocol the host makes it.
func (p Plugin) needsRoom() bool { return p.User+p.Group != "" && p.Protocol == nil }

// socketPath returns where a life of a plugin serves, and the directory that it has for that; empty if it needs none.
func socketPath(dir, name string, life int, needsRoom bool) (path, room string) {
	path = filepath.Join(dir, fmt.Sprintf("%s.%d", name, life))
	if needsRoom {
		return filepath.Join(path, "plugin.sock"), path
	}
	return path + ".sock", ""
}
