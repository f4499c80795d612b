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
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/output"
	"github.com/patchbay-dev/patchbay/internal/supervise"
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
	// adopted are the plugins that survived an earlier launcher and whose units have not begun, by their names. unadopted: there may be
	// more of them.
	adopted   map[string]*host.PluginProcess
	unadopted bool
	// work are the goroutines of all units.
	work sync.WaitGroup
}

// New returns a launcher that launches nothing yet.
func New(cfg Config) *Launcher {
	if cfg.Observe == nil {
		cfg.Observe = func(Event) {}
	}
	return &Launcher{
		cfg: cfg, units: map[string]*unit{}, leaving: map[string]*unit{}, adopted: map[string]*host.PluginProcess{},
		unadopted: cfg.Host.StateDir != "",
	}
}

// Set makes these the plugins to launch. New ones are started unless they are manual, those that are not among them any more are
// stopped, and those that run and have changed are replaced; what has not changed is not disturbed. The first Set takes over those that
// survived an earlier launcher, and replaces those that have changed meanwhile; those that it cannot reach are tried again whenever a
// plugin that survives is started, and by the next Set. It does not wait for any of that: [Launcher.Plugins] and
// the events tell how it goes. It changes nothing if a plugin is not valid.
func (l *Launcher) Set(plugins []Plugin) error {
	// gofail: var launcherSet string
	// return errors.New(launcherSet)
	wanted := map[string]Plugin{}
	for _, p := range plugins {
		if err := p.validate(); err != nil {
			return err
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
	l.adopt(func(name string) bool { return wanted[name].Survive })
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
				l.work.Go(func() { _ = u.replace(context.Background()) })
			}
			continue
		}
		u := newUnit(l, p)
		if before := l.leaving[name]; before != nil {
			u.before = before.gone
		}
		l.units[name] = u
		if l.adopted[name] != nil || !p.Manual {
			l.work.Go(func() { _ = u.start() })
		}
	}
	return nil
}

// remove removes a unit that is not wanted any more.
func (l *Launcher) remove(u *unit) {
	u.remove()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leaving[u.name] == u {
		delete(l.leaving, u.name)
	}
}

// Start starts a plugin that does not run. It returns when its process runs or has failed to start; one that runs already is left alone.
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
	units := slices.Collect(maps.Values(l.units))
	l.mu.Unlock()
	for _, u := range units {
		l.work.Go(func() { u.remove() })
	}
	l.work.Wait()
}

// adopt takes over what survived an earlier launcher and has not been taken over yet. It ends what is not to survive any more, and what runs
// again already. mu is held.
func (l *Launcher) adopt(survives func(name string) bool) {
	if !l.unadopted {
		return
	}
	// The processes are at hand: nothing here waits for long.
	processes, err := l.cfg.Host.Adopt(context.Background())
	if l.unadopted = err != nil; err != nil {
		l.cfg.Observe(Event{Time: time.Now(), Kind: EventFailed, Message: err.Error()}) // those that can be had are
	}
	for _, process := range processes {
		u := l.units[process.Name()]
		if survives(process.Name()) && l.adopted[process.Name()] == nil && (u == nil || u.processes == 0) {
			l.adopted[process.Name()] = process
			if u != nil {
				l.work.Go(func() { _ = u.start() }) // unless it is being started anyway
			}
			continue
		}
		l.work.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), defaultStopTimeout)
			defer cancel()
			// How a process ends that was told to is no news.
			_ = process.Terminate(ctx)
		})
	}
}

// occupy says that a unit is about to have a process, until vacate is called. It returns the one that survived an earlier launcher, nil if
// there is none; one with other details is replaced as soon as it has been taken over.
func (l *Launcher) occupy(u *unit, p Plugin) *host.PluginProcess {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.Survive {
		l.adopt(func(name string) bool { return l.units[name] != nil && l.units[name].survives() })
	}
	u.processes++
	process := l.adopted[u.name]
	delete(l.adopted, u.name)
	if process != nil && process.Tag() != p.tag() {
		l.work.Go(func() { _ = u.replace(context.Background()) }) // its outcome shows in the status and in the events
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
