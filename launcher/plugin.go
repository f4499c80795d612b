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
	"github.com/patchbay-dev/patchbay/internal/launch"
	"github.com/patchbay-dev/patchbay/internal/launch/machine"
	"github.com/patchbay-dev/patchbay/internal/launch/supervise"
	"github.com/patchbay-dev/patchbay/internal/pendingcalls"
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
	ErrClosed = errors.New("the launcher is closed")
)

// Plugin describes a plugin to launch. Zero fields have the defaults of the configuration, except Env, Dir and NoNewPrivs of Spec, whose
// defaults are those of package host.
type Plugin struct {
	// Spec describes the processes of the plugin. Its Name must be unique among the launched plugins and have the syntax of a file name;
	// its Env is the whole environment unless it is nil. The launcher sets PluginSocket, Admit, Tag and Adapter.
	host.Spec
	// NoSocket is set for a program that does not serve; it is ready when it has run for a second. Any other plugin gets a socket path in
	// the plugin directory, and is ready when it is registered. A plugin with a user or group gets its own directory in the plugin
	// directory.
	NoSocket bool
	// Protocol launches a plugin that speaks a protocol unknown to the host, and which must serve; nil for other plugins. [Launcher.Set]
	// compares it with the previous Protocol by [reflect.DeepEqual].
	Protocol Protocol
	// Manual plugins are started by [Launcher.Start] only.
	Manual bool
	// OnDemand starts the plugin with the first call, and stops it when no call has been in progress for Idle (default 5 min). It must
	// serve. The host listens on its socket and forwards calls, so the plugin is registered whether it runs or not, and the host is its
	// caller. After a failure it is restarted when a call needs it, whatever Restart.Policy is.
	OnDemand bool
	Idle     time.Duration
	// Announce is the type, name and versions with which an OnDemand plugin is registered before it has run. Without a Type they are those
	// that the plugin announced last; if they are not known, the plugin is started once to learn them.
	Announce plugin.Info
	Restart  plugin.RestartPolicy
	Upgrade  plugin.Upgrade
	Health   plugin.HealthCheck
	// StartTimeout is how long a process that serves may take from its start until it is ready (default 1 min). A process that takes longer
	// is stopped, which counts as a failure.
	StartTimeout time.Duration
	// LogRate is how many lines of output per second are kept (default 1,000; negative for no limit).
	LogRate int
}

// Protocol launches the plugins of a protocol.
type Protocol interface {
	// Launch launches a plugin with a host, instead of [host.Host.Launch]. It may block until the plugin answers; if ctx ends before that,
	// it stops the process. ctx has the deadline of the plugin's StartTimeout, and is cancelled when Launch has returned.
	Launch(ctx context.Context, h *host.Host, spec host.Spec) (*host.PluginProcess, error)
}

// identity returns a digest of the configuration that a process depends on, except its Controller and ExtraFiles, which two hosts cannot
// compare, and its StopTimeout, which does not change what runs. A later host adopts a surviving process if the digest is the same. It is
// empty if no process survives.
func (p Plugin) identity() string {
	if !p.Survive {
		return ""
	}
	digest := sha256.Sum256(fmt.Appendf(nil, "%q %q %t %q %q %q %q %q %q %q %q %d %t %t",
		p.Name, p.Args, p.Env == nil, p.Env, p.Dir, p.Spec.Protocol, p.SHA256, p.Interpreter, p.User, p.Group, p.OwnDir,
		[]int64{p.Limits.Memory, p.Limits.CPU, int64(p.Limits.Processes), int64(p.Limits.OpenFiles)}, p.NoNewPrivs, p.NoSocket))
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

// same reports whether a process of the other configuration can stay. Fields that do not affect the process are not compared.
func (p Plugin) same(other Plugin) bool {
	fronted := p.fronted() == other.fronted()
	p.LogRate, p.Upgrade, p.Idle, p.Announce = other.LogRate, other.Upgrade, other.Idle, other.Announce
	return fronted && reflect.DeepEqual(p, other)
}

// checks returns the settings of the health checks of a process that serves at a socket.
func (p Plugin) checks(socket string) supervise.Checks {
	return supervise.Checks{HealthCheck: plugin.HealthCheck{
		Interval: cmp.Or(p.Health.Interval, launch.DefaultHealthInterval), Timeout: cmp.Or(p.Health.Timeout, launch.DefaultHealthTimeout),
		Misses: cmp.Or(p.Health.Misses, launch.DefaultHealthMisses),
	}, Pending: pendingcalls.At(socket)}
}

func (p Plugin) startTimeout() time.Duration {
	return cmp.Or(p.StartTimeout, launch.DefaultStartTimeout)
}

func (p Plugin) stopTimeout() time.Duration { return cmp.Or(p.StopTimeout, launch.DefaultStopTimeout) }

// check returns an error if a plugin is not valid.
func (l *Launcher) check(p Plugin) error {
	if !nameText.MatchString(p.Name) {
		return fmt.Errorf("cannot launch plugin %q: a name has 1 to 128 letters, digits, dots, dashes and underscores, "+
			"and begins with a letter or digit", p.Name)
	}
	if err := l.problem(p); err != nil {
		return fmt.Errorf("cannot launch plugin %s: %w", p.Name, err)
	}
	return nil
}

// problem returns an error if a field other than the name is not valid.
func (l *Launcher) problem(p Plugin) error {
	switch {
	case p.PluginSocket != "" || p.Admit != nil || p.Tag != "" || p.Adapter != nil:
		return errors.New("the launcher itself sets the PluginSocket, Admit, Tag and Adapter of its Spec")
	case p.Protocol != nil && (p.NoSocket || p.Survive):
		return errors.New("with its protocol it must serve and cannot survive its host")
	case p.OnDemand && p.NoSocket:
		return errors.New("a plugin that is started on demand must serve, so that it can be called")
	case p.fronted() && p.Survive:
		return errors.New("a plugin that is started on demand or handed over cannot survive its host, which answers for it")
	case len(p.Args) == 0 || p.Args[0] == "":
		return errors.New("it has no command")
	case !slices.Contains(upgrades, p.Upgrade) || !slices.Contains(restarts, p.Restart.Policy):
		return fmt.Errorf("its Upgrade %q or its Restart.Policy %q is unknown: use the constants of package plugin", p.Upgrade, p.Restart.Policy)
	case !p.NoSocket && l.cfg.Registrations == nil:
		return errors.New("it must serve, and the launcher has no Registrations")
	case min(p.Idle, p.Restart.Backoff.Min, p.Restart.Backoff.Max, p.Restart.Window) < 0:
		return errors.New("its Idle or a duration of its Restart is negative")
	case min(p.Health.Interval, p.Health.Timeout) < 0 || p.Health.Misses < 0:
		return errors.New("the Interval, Timeout and Misses of its Health must not be below zero")
	case p.Survive && l.cfg.Host.StateDir == "":
		return errors.New("it must survive its host, which has no directory to remember it in: set the StateDir of the host")
	}
	return p.Spec.Validate() //nolint:staticcheck // of the Spec alone
}

var (
	upgrades = []plugin.Upgrade{"", plugin.UpgradeSideBySide, plugin.UpgradeHandover, plugin.UpgradeRecreate}
	restarts = []plugin.Restart{"", plugin.RestartOnFailure, plugin.RestartAlways, plugin.RestartNever}
)

var nameText = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$`)

// manyProcesses is more than the number of processes that a plugin has during one run of its host.
const manyProcesses = 999_999

// CheckSocket returns an error if the paths of the plugin's sockets in a plugin directory would be too long for Unix sockets.
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
	if path, _ := socketPath(dir, p.Name, manyProcesses, p.needsDir()); len(path) > sock.MaxPath {
		return fmt.Errorf("its sockets in plugin directory %s have paths of up to %d bytes, such as %s, and the path of a socket may have %d: "+
			"choose a shorter name or plugin directory", dir, len(path), path, sock.MaxPath)
	}
	if checker, ok := p.Protocol.(interface{ CheckDir(dir string) error }); ok {
		return checker.CheckDir(dir)
	}
	return nil
}

// needsDir reports whether a plugin that serves needs a directory for its socket: a plugin that runs as another user does, unless the host
// serves the socket for it.
func (p Plugin) needsDir() bool { return p.User+p.Group != "" && p.Protocol == nil }

// socketPath returns the path of the socket of a process, and the directory that is made for it; empty if none is needed.
func socketPath(dir, name string, number int, needsDir bool) (path, own string) {
	path = filepath.Join(dir, fmt.Sprintf("%s.%d", name, number))
	if needsDir {
		return filepath.Join(path, "plugin.sock"), path
	}
	return path + ".sock", ""
}
