// Package launcher keeps launched plugins running: it starts them, restarts them according to their policy, and replaces them without
// downtime. It does not start processes itself, which package host does, or register plugins: the pipeline discovers the socket of a
// launched plugin like any other.
package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/callback"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/launch/machine"
	"github.com/patchbay-dev/patchbay/internal/launch/supervise"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Config is what a [Launcher] works with.
type Config struct {
	// Host starts the processes. It is required.
	Host *host.Host
	// Dir is the plugin directory in which plugins that serve get their sockets. It is recreated if it is removed.
	Dir string
	// Admit decides before each start whether the program may run; see [host.Spec]. If it is nil, every program may run.
	Admit func(ctx context.Context, pin plugin.Pin) error
	// Registrations is asked about the registrations of the plugins. It is required for plugins that serve.
	Registrations Registrations
	// Observe receives the events of the plugins, in order for each plugin. It must not block or call the launcher. It is a function and
	// not a subscription because the order of events and states must be the same for all observers. May be nil.
	Observe func(plugin.Event)
	// OnCallsLimited is called when calls to plugins for which this process answers are slowed down or refused, because there are too many
	// or too much of their data waits in memory: with the user, the reason, and whether this has just begun. It must not block. It is a
	// function because it is a count and not an event of a plugin. May be nil.
	OnCallsLimited func(uid uint32, reason string, first bool)
	// Output gets the output of plugins in addition to their bounded logs. May be nil.
	Output slog.Handler
}

// Registrations knows which launched plugins are registered. A patchbay.Runtime gives its launcher one.
type Registrations interface {
	// AwaitRegistered blocks until the plugin behind a socket is registered and returns nil, or the error of ctx when it ends. If the
	// plugin was refused, and each time that it is refused, it calls refused with the reason.
	AwaitRegistered(ctx context.Context, socket string, refused func(error)) error
	// Announced returns what the plugin behind a socket was registered with last; ok is false if that is not known.
	Announced(socket string) (info plugin.Info, ok bool)
}

// Launcher keeps plugins running. Its methods are safe for concurrent use.
type Launcher struct {
	cfg    Config
	budget *h2proxy.Budget // of the calls to plugins for which the host answers
	crowd  supervise.Crowd // of the plugins whose health is followed
	// adopting is cancelled by Close, which stops the attempts to reach survivors.
	adopting     context.Context //nolint:containedctx // for work that no caller waits for
	stopAdopting context.CancelFunc

	setting   sync.Mutex   // held during Set, which may wait for survivors; taken before mu; guards the next three fields
	hasAsked  bool         // adopt has called the host
	hasTidied bool         // tidy was called
	unlock    func() error // unlocks the plugin directory; nil if it is not locked

	mu      sync.Mutex // guards the next three fields; held for short steps
	units   map[string]*unit
	leaving map[string]*unit // units that are being removed
	closed  bool

	work sync.WaitGroup // the goroutines of all units, and adoptRest
}

// New returns a launcher that launches nothing yet. It panics if the Config has no Host.
func New(cfg Config) *Launcher {
	if cfg.Host == nil {
		panic("launcher: Config.Host is nil")
	}
	log := cmp.Or(cfg.Host.Logger, slog.Default())
	if cfg.Observe = callback.Observer(log, "Observe", cfg.Observe); cfg.Observe == nil {
		cfg.Observe = func(plugin.Event) {}
	}
	if cfg.OnCallsLimited == nil {
		cfg.OnCallsLimited = func(uint32, string, bool) {}
	}
	if dir, err := filepath.Abs(cfg.Dir); err == nil { // otherwise it stays relative, as for the discovery
		cfg.Dir = dir
	}
	limited := func(uid uint32, why h2proxy.Reason, first bool) {
		callback.Observer(log, "OnCallsLimited", func(first bool) { cfg.OnCallsLimited(uid, string(why), first) })(first)
	}
	limits := h2proxy.DefaultLimits
	limits.Cancels = h2proxy.CancelRates{} // the callers are shared connections of this program, which limits its own callers
	l := &Launcher{
		cfg: cfg, units: map[string]*unit{}, leaving: map[string]*unit{},
		budget: h2proxy.NewBudget(limits, uint32(max(os.Geteuid(), 0)), limited),
	}
	l.adopting, l.stopAdopting = context.WithCancel(context.Background())
	return l
}

// Set sets the plugins to launch. New plugins are started unless they are manual, missing plugins are stopped, running plugins that have
// changed are replaced, and unchanged plugins are not disturbed. The first Set adopts processes that survived an earlier launcher, and
// replaces those whose plugins have changed. It waits up to 3 s for them; the launcher keeps trying to reach the others, and stops them if
// their plugins were started again. Set does not wait for anything else: [Launcher.Plugins] and the events show the progress.
//
// If a plugin is not valid, Set changes nothing. An error that wraps [ErrProgram] names plugins whose programs do not exist or cannot be
// executed: they are launched when this has changed, and all other plugins immediately.
func (l *Launcher) Set(plugins []Plugin) error {
	// gofail: var launcherSet string
	// return errors.New(launcherSet)
	wanted := map[string]Plugin{}
	for _, p := range plugins {
		if err := l.check(p); err != nil {
			return err
		}
		if _, twice := wanted[p.Name]; twice {
			return fmt.Errorf("cannot launch plugin %s: it is configured twice; give each a name of its own", p.Name)
		}
		wanted[p.Name] = p
	}
	l.setting.Lock()
	defer l.setting.Unlock()
	if err := l.lockDir(wanted); err != nil {
		return err
	}
	l.tidy(wanted)
	if err := l.apply(wanted); err != nil {
		return err
	}
	return checkPrograms(plugins) // while their processes start
}

// apply adopts survivors, stops the plugins that are not wanted, and configures and starts the others. The caller holds setting.
func (l *Launcher) apply(wanted map[string]Plugin) error {
	survivors, err := l.adopt()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("cannot launch plugins: %w", ErrClosed)
	}
	for name, u := range l.units {
		if _, stays := wanted[name]; !stays {
			l.remove(u)
		}
	}
	fresh := map[string]bool{}
	for _, p := range wanted {
		fresh[p.Name] = l.configure(p)
	}
	l.assignSurvivors(survivors)
	if err != nil {
		l.work.Go(l.adoptRest)
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		switch u := l.units[name]; {
		case wanted[name].OnDemand && (fresh[name] && !wanted[name].Manual || u.Status().State == plugin.StateIdle):
			u.announceIdle(wanted[name])
		case fresh[name] && !wanted[name].Manual:
			u.Tell(machine.Start{})
		}
	}
	return nil
}

// configure sets the description of a plugin, and reports whether the plugin is new. mu is held.
func (l *Launcher) configure(p Plugin) (fresh bool) {
	u := l.units[p.Name]
	if u == nil {
		fresh = true
		if u = l.leaving[p.Name]; u == nil {
			u = newUnit(l, p)
		}
		delete(l.leaving, p.Name)
		l.units[p.Name] = u
	}
	u.configure(p)
	return fresh
}

// lockDir locks the plugin directory, because two launchers would give their plugins the same sockets, and remove those of each other. The
// caller holds setting.
func (l *Launcher) lockDir(wanted map[string]Plugin) error {
	serves := slices.ContainsFunc(slices.Collect(maps.Values(wanted)), func(p Plugin) bool { return !p.NoSocket })
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if !serves || closed || l.unlock != nil {
		return nil
	}
	dir, err := l.makeDir(false)
	if err != nil {
		return nil //nolint:nilerr // each launch fails with this error
	}
	unlock, err := sock.Lock(filepath.Join(dir, "launcher"))
	switch {
	case errors.Is(err, sock.ErrInUse):
		return fmt.Errorf("cannot launch plugins in %s: another daemon or host launches plugins there; give this one another plugin "+
			"directory: %w", dir, sock.ErrInUse)
	case err == nil:
		l.unlock = unlock
	}
	return nil // with any other error, the directory is not writable, which each launch reports
}

// tidy removes, in its first call, sockets that a killed host had created for plugins that it could not start any more. The sockets of
// plugins that survive stay. The caller holds setting.
func (l *Launcher) tidy(wanted map[string]Plugin) {
	if l.hasTidied {
		return
	}
	l.hasTidied = true
	for _, dir := range []string{l.cfg.Dir, filepath.Join(l.cfg.Dir, behindName)} {
		files, _ := os.ReadDir(dir) // it may not exist
		for _, file := range files {
			socket, made := sock.MadeFor(file.Name())
			life := strings.TrimSuffix(socket, ".sock")
			name := strings.TrimSuffix(life, filepath.Ext(life))
			if p, ours := wanted[name]; made && ours && !p.Survive {
				_ = sock.RemoveMade(filepath.Join(dir, socket)) // after an error, the next host tries again
			}
		}
	}
}

// remove stops a unit and then forgets it, unless it is configured again before it has stopped. The caller holds mu.
func (l *Launcher) remove(u *unit) {
	delete(l.units, u.name)
	l.leaving[u.name] = u
	u.Remove(func(error) { l.work.Go(func() { l.forget(u) }) })
}

func (l *Launcher) forget(u *unit) {
	l.mu.Lock()
	gone := l.leaving[u.name] == u
	if gone {
		delete(l.leaving, u.name)
	}
	l.mu.Unlock()
	if gone {
		u.endFront()
		u.closeLog()
	}
}

// Start starts a plugin that is not running, even during a back-off. It returns when the process runs or has failed to start. It does
// nothing if the plugin runs.
func (l *Launcher) Start(name string) error {
	return l.request(context.Background(), name, "start", (*unit).Start)
}

// Stop stops a plugin and waits until its process has exited. The plugin is not started again before Start or Restart. The error wraps
// [ErrUnknown] if there is no such plugin, and [ErrClosed] after Close.
func (l *Launcher) Stop(name string) error {
	err := l.request(context.Background(), name, "stop", (*unit).Stop)
	if u, unknown := l.unit(name); err == nil && unknown == nil && u.Status().State == plugin.StateStopped {
		u.shut()
	}
	return err
}

// Restart replaces the process of a running plugin as its Upgrade says; a plugin that does not serve is stopped first, since two processes
// may conflict. It starts a plugin that is not running, even one that has failed.
//
// Restart blocks until the new process is ready and the old one has exited, or until ctx ends; for a plugin that was not running or does
// not serve, until the new process runs. If the new process is not ready within the plugin's StartTimeout it is stopped, the error wraps
// [plugin.ErrReplacement], and with [plugin.UpgradeSideBySide] the old one keeps running.
func (l *Launcher) Restart(ctx context.Context, name string) error {
	return l.request(ctx, name, "restart", (*unit).Replace)
}

// AwaitReplacement waits until the process that the last Set had to replace has been replaced, and returns nil, or why it was not; see
// [Launcher.Restart]. It returns immediately if there is none. The error wraps [plugin.ErrReplacement], [ErrUnknown] if there is no such
// plugin, [ErrClosed] after Close, or the cause of the end of ctx.
func (l *Launcher) AwaitReplacement(ctx context.Context, name string) error {
	u, err := l.unit(name)
	if err != nil {
		return fmt.Errorf("cannot replace %s: %w", name, err)
	}
	r := u.replacement.Load()
	select {
	case <-r.ended:
		err = r.err
	case <-ctx.Done():
		err = fmt.Errorf("its new process is not ready yet: %w", context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("cannot replace %s: %w", name, err)
	}
	return nil
}

// SocketRemoved reports that the socket of a plugin was removed while its process still serves. The launcher replaces the process, which
// cannot be discovered any more. It does not block.
func (l *Launcher) SocketRemoved(socket string) {
	u := l.fronting(socket)
	l.mu.Lock()
	defer l.mu.Unlock()
	if u != nil && !l.closed {
		l.work.Go(func() { u.reopen() })
		return
	}
	for _, u := range l.units {
		u.Tell(machine.SocketLost{Socket: socket})
	}
}

// Log returns the newest output of a plugin, across its restarts. The error wraps [ErrUnknown] if there is no such plugin, and [ErrClosed]
// after Close.
func (l *Launcher) Log(name string) (plugin.Log, error) {
	u, err := l.unit(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the log of %s: %w", name, err)
	}
	return u.output(), nil
}

// Plugins describes all plugins of the launcher, sorted by name.
func (l *Launcher) Plugins() []plugin.LaunchStatus {
	l.mu.Lock()
	units := slices.Collect(maps.Values(l.units))
	fronts := make([]string, len(units))
	for i, u := range units {
		if f := u.front.Load(); f != nil && u.plugin.fronted() {
			fronts[i] = f.Path()
		}
	}
	l.mu.Unlock()
	statuses := make([]plugin.LaunchStatus, len(units))
	for i, u := range units {
		statuses[i] = u.Status()
		statuses[i].Name, statuses[i].Socket = u.name, cmp.Or(statuses[i].Socket, fronts[i])
	}
	slices.SortFunc(statuses, func(a, b plugin.LaunchStatus) int { return cmp.Compare(a.Name, b.Name) })
	return statuses
}

// Close concurrently stops all plugins except those that survive. It returns when everything that the launcher started has ended, which
// takes at most the longest StopTimeout, or less if the host is closed. Sockets at which the launcher answers for plugins stay until
// CloseFronts, so that these plugins are not deregistered before.
func (l *Launcher) Close() {
	l.mu.Lock()
	l.closed = true
	l.stopAdopting()
	units := slices.Collect(maps.Values(l.units))
	for _, u := range units {
		u.Tell(machine.Close{Err: ErrClosed})
	}
	l.mu.Unlock()
	l.work.Wait()
	l.setting.Lock()
	if l.unlock != nil {
		_ = l.unlock() // the lock ends with the process at the latest
		l.unlock = nil
	}
	l.setting.Unlock()
	for _, u := range units {
		u.closeLog()
	}
}

// CloseFronts removes the sockets at which the launcher answers for plugins, and ends the calls there. Call it after Close, when the
// discovery has stopped.
func (l *Launcher) CloseFronts() {
	l.mu.Lock()
	units := slices.Collect(maps.Values(l.units))
	l.mu.Unlock()
	for _, u := range units {
		u.endFront()
	}
}

// adopt returns, in its first call, the processes that survived an earlier launcher, and an error if some could not be reached. It waits up
// to 3 s for a survivor that does not answer, so the caller holds setting, but not mu.
func (l *Launcher) adopt() (found []*host.PluginProcess, err error) {
	if l.hasAsked || l.cfg.Host.StateDir == "" {
		return nil, nil
	}
	l.hasAsked = true
	if found, err = l.cfg.Host.Adopt(l.adopting); err != nil {
		l.cfg.Observe(plugin.Event{Time: time.Now(), Kind: plugin.EventFailed, Message: err.Error()})
	}
	return found, err
}

// adoptRest retries with back-off until all survivors are reached or the launcher is closed. There is no notification to wait for.
func (l *Launcher) adoptRest() {
	pauses := backoff.Backoff{Min: time.Second, Max: time.Minute}
	for failures := 1; backoff.Pause(l.adopting, pauses.After(failures)); failures++ {
		found, err := l.cfg.Host.Adopt(l.adopting)
		l.mu.Lock()
		l.assignSurvivors(found)
		l.mu.Unlock()
		if err == nil {
			return
		}
	}
}

// assignSurvivors passes each survivor to its unit. A survivor without a unit is stopped. The caller holds mu.
func (l *Launcher) assignSurvivors(found []*host.PluginProcess) {
	for _, p := range found {
		u := l.units[p.Name()]
		switch {
		case l.closed: // the host leaves the process running
		case u == nil:
			l.work.Go(func() { _ = p.Terminate(context.Background()) })
		default:
			u.Survivor(&process{PluginProcess: p, unit: u, plugin: u.plugin})
		}
	}
}

func (l *Launcher) request(ctx context.Context, name, verb string, do func(u *unit, done func(error)) (withdraw func(error))) error {
	u, err := l.unit(name)
	if err == nil {
		outcome := make(chan error, 1)
		withdraw := do(u, func(err error) { outcome <- err })
		select {
		case err = <-outcome:
		case <-ctx.Done():
			withdraw(context.Cause(ctx))
			err = <-outcome
		}
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
