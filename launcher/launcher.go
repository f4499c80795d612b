// Package launcher keeps launched plugins running: it starts those that it is told to, starts them again when they end, as their policy
// says, and replaces one by another without downtime. How a process is started and ended is the business of package host; how a
// plugin that serves is found and registered is that of the one pipeline, for which a launched plugin is a socket like any other.
package launcher

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/launch/output"
	"github.com/patchbay-dev/patchbay/internal/launch/supervise"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// The errors that a caller may act on.
var (
	// ErrUnknown: no plugin of that name is to be launched.
	ErrUnknown = errors.New("no such launched plugin")
	// ErrClosed: the launcher is closed.
	ErrClosed = errors.New("the launcher is closed")
	// ErrReplacement: a replacement did not become ready. The old one goes on.
	ErrReplacement = errors.New("the replacement did not become ready")
)

// RestartPolicy says when a plugin that ended is started again.
type RestartPolicy = supervise.Policy

// When a plugin is started again.
const (
	RestartAlways    = supervise.Always
	RestartOnFailure = supervise.OnFailure
	RestartNever     = supervise.Never
)

type (
	// Log is the newest output of a plugin, over all its lives.
	Log = output.Log
	// Record is one line of a Log.
	Record = output.Record
)

// Plugin is a plugin to launch.
type Plugin struct {
	// Name is unique among the launched plugins. It has the syntax of a file name.
	Name string
	// Args are the program and its arguments; Env is the whole environment and Dir the working directory.
	Args []string
	Env  []string
	Dir  string
	// Serve gives the plugin a socket path in the plugin directory: it is ready when it is registered. One that does not serve is
	// ready when it has run for a moment.
	Serve bool
	// Protocol launches a plugin that speaks another protocol than the host's, which must serve; nil for all others. It is compared with
	// that of an earlier configuration by [reflect.DeepEqual].
	Protocol Protocol
	// Manual plugins are started by [Launcher.Start] only.
	Manual bool
	// Survive lets the plugin go on when the host ends; see [host.Spec]. It needs the StateDir of the host.
	Survive bool
	// Controller grants host services; nil for none beyond those that everyone has.
	Controller *host.Controller
	// SHA256, Interpreter, User, Group, Limits and NoNewPrivs are those of [host.Spec]. One that serves and has a user or group gets a
	// directory of its own in the plugin directory.
	SHA256      string
	Interpreter string
	User, Group string
	Limits      host.Limits
	NoNewPrivs  bool
	// Restart says when it is started again.
	Restart RestartPolicy
	// StopTimeout is how long it may take to end before it is killed (default 5 s).
	StopTimeout time.Duration
	// ReadyTimeout is how long a replacement may take to become ready (default 30 s).
	ReadyTimeout time.Duration
	// LogRate is how many lines of output a second are kept (default 1,000; negative for no limit).
	LogRate int
}

// Protocol launches a plugin with a host, in the place of [host.Host.Launch]. It may take its time until the plugin is met; the end of ctx
// ends that, and the process.
type Protocol interface {
	Launch(ctx context.Context, h *host.Host, spec host.Spec) (*host.PluginProcess, error)
}

// Config is what a [Launcher] works with.
type Config struct {
	Host *host.Host
	// Dir is the plugin directory in which plugins that serve get their sockets.
	Dir string
	// Admit is asked before each start whether the program may run; see [host.Spec]. Nil: every program may.
	Admit func(ctx context.Context, pin plugin.Pin) error
	// AwaitRegistered blocks until the plugin behind a socket is registered and returns nil, or an error if it was refused or ctx ended.
	AwaitRegistered func(ctx context.Context, socket string) error
	// Observe is told what happens, in order for each plugin. It must not block. May be nil.
	Observe func(Event)
	// Output is where the output of plugins goes to beside their bounded logs. May be nil.
	Output slog.Handler
}

// Launcher keeps plugins running. Its methods are safe for concurrent use.
type Launcher struct {
	cfg Config

	mu    sync.Mutex
	units map[string]*unit
	// leaving are the units that are being removed, by their names.
	leaving map[string]*unit
	closed  bool
	// adopted are the plugins that survived an earlier launcher and that their units have not taken over yet, by their names; nil until the
	// first Set.
	adopted map[string]*host.PluginProcess
	// stopAdopting ends the tries to reach survivors.
	stopAdopting context.CancelFunc
	// work are the goroutines of all units, and the one that looks for survivors.
	work sync.WaitGroup
}

// New returns a launcher that launches nothing yet.
func New(cfg Config) *Launcher {
	if cfg.Observe == nil {
		cfg.Observe = func(Event) {}
	}
	return &Launcher{cfg: cfg, units: map[string]*unit{}, leaving: map[string]*unit{}, stopAdopting: func() {}}
}

// Set makes these the plugins to launch. New ones are started unless they are manual, those that are not among them any more are
// stopped, and those that run and have changed are replaced; what has not changed is not disturbed. The first Set takes over those that
// survived an earlier launcher, and replaces those that have changed meanwhile. Those that it cannot reach within 3 s are tried again and
// again; when one is reached of a plugin that runs again, it is ended. Set does not wait for anything else: [Launcher.Plugins] and the
// events tell how it goes. It changes nothing if a plugin is not valid.
func (l *Launcher) Set(plugins []Plugin) error {
	// gofail: var launcherSet string
	// return errors.New(launcherSet)
	wanted := map[string]Plugin{}
	for _, p := range plugins {
		if err := p.validate(); err != nil {
			return err
		}
		if p.Survive && l.cfg.Host.StateDir == "" {
			return fmt.Errorf("cannot launch plugin %s: it is to survive its host, which has no directory in which to remember it: set the "+
				"StateDir of the host", p.Name)
		}
		if _, twice := wanted[p.Name]; twice {
			return fmt.Errorf("cannot launch plugin %s: it is configured twice; give each a name of its own", p.Name)
		}
		wanted[p.Name] = p
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("cannot launch plugins: %w", ErrClosed)
	}
	if l.adopted == nil {
		l.adopted = map[string]*host.PluginProcess{}
		l.adopt(wanted)
	}
	for name, u := range l.units {
		if _, stays := wanted[name]; !stays {
			delete(l.units, name)
			l.leaving[name] = u
			l.work.Go(func() { l.remove(u) })
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		p := wanted[name]
		if u, known := l.units[name]; known {
			if u.change(p) {
				// Its outcome shows in the status and in the events.
				l.work.Go(func() { u.unlessStopped(func() error { return u.exchange(context.Background()) }) })
			}
			continue
		}
		u := newUnit(l, p)
		if before := l.leaving[name]; before != nil {
			u.before = before.gone
		}
		l.units[name] = u
		if l.adopted[name] != nil || !p.Manual {
			l.work.Go(func() { u.unlessStopped(u.ensure) })
		}
	}
	return nil
}

func (l *Launcher) remove(u *unit) {
	u.remove()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leaving[u.name] == u {
		delete(l.leaving, u.name)
	}
}

// Start starts a plugin that does not run, also one that pauses before it is started again. It returns when its process runs or has failed
// to start; one that runs already is left alone.
func (l *Launcher) Start(name string) error {
	return l.on(name, "start", (*unit).start)
}

// Stop ends a plugin, and waits until it has ended. It is not started again before Start or Restart.
func (l *Launcher) Stop(name string) error {
	return l.on(name, "stop", (*unit).stop)
}

// Restart replaces a running plugin by another life of it, without downtime if it serves; one that does not is ended first, since two of
// it may not get along. It starts one that does not run, also after it has failed. It blocks until the new one is ready, at most for the
// plugin's ReadyTimeout or until ctx ends. If the new one does not become ready the old one goes on and the error wraps [ErrReplacement].
func (l *Launcher) Restart(ctx context.Context, name string) error {
	return l.on(name, "restart", func(u *unit) error { return u.replace(ctx) })
}

// Log returns the output of a plugin.
func (l *Launcher) Log(name string) (*Log, error) {
	u, err := l.unit(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the log of %s: %w", name, err)
	}
	return u.output(), nil
}

// Plugins describes all plugins that are to be launched, sorted by name.
func (l *Launcher) Plugins() []Status {
	l.mu.Lock()
	units := slices.Collect(maps.Values(l.units))
	l.mu.Unlock()
	statuses := make([]Status, len(units))
	for i, u := range units {
		statuses[i] = u.status()
	}
	slices.SortFunc(statuses, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return statuses
}

// Close ends all plugins but those that survive, at the same time, and returns when all that the launcher started has ended. Each has its
// own StopTimeout; Close of the host cuts that short.
func (l *Launcher) Close() {
	l.mu.Lock()
	l.closed = true
	l.stopAdopting()
	units := slices.Collect(maps.Values(l.units))
	l.mu.Unlock()
	for _, u := range units {
		l.work.Go(func() { u.remove() })
	}
	l.work.Wait()
}

// adopt takes over what survived an earlier launcher, and sees to it that what cannot be reached is tried again. mu is held.
func (l *Launcher) adopt(wanted map[string]Plugin) {
	if l.cfg.Host.StateDir == "" {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	processes, err := l.cfg.Host.Adopt(ctx)
	for _, process := range processes {
		if name := process.Name(); wanted[name].Survive && l.adopted[name] == nil {
			l.adopted[name] = process
		} else {
			l.discard(process)
		}
	}
	if err == nil {
		cancel()
		return
	}
	l.cfg.Observe(Event{Time: time.Now(), Kind: EventFailed, Message: err.Error()})
	l.stopAdopting = cancel
	l.work.Go(func() { l.adoptRest(ctx) })
}

// adoptRest tries to reach the survivors that could not be reached until all are, or ctx ends. Nothing tells that one can be.
func (l *Launcher) adoptRest(ctx context.Context) {
	pauses := backoff.Backoff{Min: time.Second, Max: time.Minute}
	for failures := 1; ; failures++ {
		timer := time.NewTimer(pauses.After(failures))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		processes, err := l.cfg.Host.Adopt(ctx)
		for _, process := range processes {
			l.adoptLate(process)
		}
		if err == nil {
			return
		}
	}
}

// adoptLate gives a survivor to its unit, unless that was stopped or has a process, or is to have one, which may not get along with it.
func (l *Launcher) adoptLate(process *host.PluginProcess) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.units[process.Name()]
	switch {
	case l.closed: // the host lets it go on
	case u == nil || u.processes > 0 || l.adopted[u.name] != nil || !u.takesOver():
		l.discard(process)
	default:
		l.adopted[u.name] = process
		l.work.Go(u.takeOver)
	}
}

func (l *Launcher) discard(process *host.PluginProcess) {
	l.work.Go(func() { terminate(process, defaultStopTimeout) })
}

// takeAdopted returns the process of a unit that survived an earlier launcher and that nobody has taken over; nil if there is none.
func (l *Launcher) takeAdopted(u *unit) *host.PluginProcess {
	l.mu.Lock()
	defer l.mu.Unlock()
	if newer := l.units[u.name]; newer != nil && newer != u {
		return nil
	}
	process := l.adopted[u.name]
	delete(l.adopted, u.name)
	return process
}

func (l *Launcher) hasAdopted(u *unit) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.adopted[u.name] != nil
}

// occupy says that a unit is about to have a process, until vacate is called. It returns the one that survived an earlier launcher, nil if
// there is none; one with other details is replaced as soon as it has been taken over.
func (l *Launcher) occupy(u *unit, p Plugin) *host.PluginProcess {
	l.mu.Lock()
	u.processes++
	l.mu.Unlock()
	process := l.takeAdopted(u)
	if process != nil && process.Tag() != p.tag() {
		l.work.Go(func() { u.unlessStopped(func() error { return u.exchange(context.Background()) }) })
	}
	return process
}

func (l *Launcher) vacate(u *unit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u.processes--
}

func (l *Launcher) closing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

func (l *Launcher) on(name, verb string, do func(*unit) error) error {
	u, err := l.unit(name)
	if err == nil {
		err = do(u)
	}
	if err != nil {
		return fmt.Errorf("cannot %s %s: %w", verb, name, err)
	}
	return nil
}

func (l *Launcher) unit(name string) (*unit, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	u, known := l.units[name]
	if !known {
		return nil, ErrUnknown
	}
	return u, nil
}

// tag tells whether a process that survived is of this plugin as it is configured now.
func (p Plugin) tag() string {
	what := struct {
		Args, Env                             []string
		Dir, SHA256, Interpreter, User, Group string
		Serve, NoNewPrivs                     bool
		Limits                                host.Limits
	}{p.Args, p.Env, p.Dir, p.SHA256, p.Interpreter, p.User, p.Group, p.Serve, p.NoNewPrivs, p.Limits}
	text, err := json.Marshal(what)
	if err != nil {
		panic(err) // texts and numbers can be marshalled
	}
	digest := sha256.Sum256(text)
	return hex.EncodeToString(digest[:8])
}

func (p Plugin) same(other Plugin) bool { return reflect.DeepEqual(p, other) }

func (p Plugin) stopTimeout() time.Duration { return cmp.Or(p.StopTimeout, defaultStopTimeout) }

// grace divides the StopTimeout: a plugin that does not heed the end of its standard input has the second half for SIGTERM.
func (p Plugin) grace() host.Grace {
	half := p.stopTimeout() / 2
	return host.Grace{Stdin: half, Term: p.stopTimeout() - half}
}

func (p Plugin) validate() error {
	switch {
	case !validName(p.Name):
		return fmt.Errorf("cannot launch plugin %q: a name has 1 to %d letters, digits, dots, dashes and underscores, "+
			"and begins with a letter or digit", p.Name, maxName)
	case p.Protocol != nil && (!p.Serve || p.Survive):
		return fmt.Errorf("cannot launch plugin %s: with its protocol it must serve and cannot survive its host", p.Name)
	case len(p.Args) == 0 || p.Args[0] == "":
		return fmt.Errorf("cannot launch plugin %s: it has no command", p.Name)
	}
	return nil
}

const maxName = 128

func validName(name string) bool {
	for i, c := range []byte(name) {
		alphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alphanumeric && (i == 0 || c != '.' && c != '-' && c != '_') {
			return false
		}
	}
	return name != "" && len(name) <= maxName
}

// manyLives is a number of lives that no plugin has during one run of its host.
const manyLives = 999_999

// CheckSocket says whether a plugin can serve in a plugin directory: the path of a socket must not be too long for those who connect.
func (p Plugin) CheckSocket(dir string) error {
	if !p.Serve {
		return nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if path, _ := socketPath(dir, p.Name, manyLives, p.needsRoom()); len(path) > sock.MaxPath {
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
