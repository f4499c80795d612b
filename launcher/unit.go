package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/callback"
	"github.com/patchbay-dev/patchbay/internal/grpcsock"
	"github.com/patchbay-dev/patchbay/internal/launch/account"
	"github.com/patchbay-dev/patchbay/internal/launch/activator"
	"github.com/patchbay-dev/patchbay/internal/launch/machine"
	"github.com/patchbay-dev/patchbay/internal/launch/pluginlog"
	"github.com/patchbay-dev/patchbay/internal/launch/supervise"
	"github.com/patchbay-dev/patchbay/internal/peerauth"
	"github.com/patchbay-dev/patchbay/plugin"
)

// dirMode is the mode of a plugin directory that is created again.
const dirMode = 0o750

// unit launches one plugin.
type unit struct {
	*supervise.Unit
	name          string
	launcher      *Launcher
	log           *pluginlog.Log
	socketCounter atomic.Int64 // numbers the processes, to name their sockets
	front         atomic.Pointer[activator.Front]
	plugin        *Plugin // the current configuration; nil before the first; guarded by Launcher.mu
	replacement   atomic.Pointer[replacement]
}

// replacement is the outcome of replacing the process after the last change of the configuration.
type replacement struct {
	ended chan struct{} // closed when err is set
	err   error
}

func newUnit(l *Launcher, p Plugin) *unit {
	u := &unit{launcher: l, name: p.Name, log: pluginlog.New(p.Name, l.cfg.Output, p.LogRate)}
	u.Unit = supervise.New(u, supervise.Real{WaitGroup: &l.work})
	return u
}

// Needed implements [supervise.Owner].
func (u *unit) Needed() bool {
	f := u.front.Load()
	return f != nil && f.Needed()
}

// Observe implements [supervise.Owner]. Calls that wait at the front for a process fail if none is started. An idle plugin has the front's
// socket.
func (u *unit) Observe(e plugin.Event) {
	e.Name = u.name
	if f := u.front.Load(); f != nil {
		switch e.Kind {
		case plugin.EventBackoff, plugin.EventFailed, plugin.EventStopped:
			f.Fail(errors.New(e.Message))
		case plugin.EventIdle:
			e.SocketPath = f.Path()
		default: // calls keep waiting
		}
	}
	u.launcher.cfg.Observe(e)
}

// configure sets the configuration of the plugin. The caller holds Launcher.mu.
func (u *unit) configure(p Plugin) {
	changed := u.plugin != nil && !u.plugin.same(p)
	if u.plugin != nil && u.plugin.LogRate != p.LogRate {
		u.log.SetRate(p.LogRate)
	}
	u.plugin = &p
	u.setFront(p)
	r := &replacement{ended: make(chan struct{})}
	u.replacement.Store(r)
	u.Configure(program{u, &p}, p.about(), changed, func(err error) {
		r.err = err
		close(r.ended)
	})
}

// process implements [supervise.Process].
type process struct {
	*host.PluginProcess
	unit       *unit
	plugin     *Plugin // the configuration with which the process was started or adopted
	generation machine.Ref
	began      time.Time                        // zero for a survivor, whose log has no other output
	front      *activator.Front                 // forwards calls to the process; nil if callers connect to the process itself
	target     atomic.Pointer[activator.Target] // the process in front; nil until verifyAndRoute has set it
}

// AwaitReady blocks until the process, or the front of the plugin, is registered.
func (p *process) AwaitReady(ctx context.Context, refused func(error)) error {
	u := p.unit
	if p.front != nil && p.target.Load() == nil {
		if err := u.verifyAndRoute(ctx, p); err != nil {
			if ctx.Err() == nil {
				u.Unfit(p, err, false)
			}
			<-ctx.Done() // when the unit stops the process
			return ctx.Err()
		}
	}
	err := callback.Call(func() error { return u.launcher.cfg.Registrations.AwaitRegistered(ctx, p.About().Socket, refused) })
	if failed, ok := errors.AsType[*callback.Error](err); ok {
		u.Unfit(p, fmt.Errorf("AwaitRegistered did not return: %w", failed), false)
	}
	if err == nil {
		p.MarkRegistered()
		if f := u.front.Load(); f != nil && p.front == nil {
			_ = f.ShutUnserved(ctx) // a socket that is left there has no listener
		}
	}
	return err
}

// program implements [supervise.Program] with one configuration of a plugin.
type program struct {
	unit   *unit
	plugin *Plugin
}

// Launch implements [supervise.Program].
func (c program) Launch(ctx context.Context, generation machine.Ref) (supervise.Process, error) {
	u, p := c.unit, c.plugin
	l := u.launcher
	spec := p.Spec
	spec.Tag = p.identity()
	if l.cfg.Admit != nil {
		spec.Admit = func(ctx context.Context, pin plugin.Pin) error {
			return p.inTime(ctx, func(ctx context.Context) error { return l.cfg.Admit(ctx, pin) })
		}
	}
	if !p.NoSocket {
		dir, err := l.makeDir(p.fronted())
		if err != nil {
			return nil, err
		}
		spec.PluginSocket = u.nextSocket(dir, p.needsDir())
	}
	began := time.Now()
	launch := l.cfg.Host.Launch
	if p.Protocol != nil {
		launch = func(ctx context.Context, spec host.Spec) (launched *host.PluginProcess, err error) {
			err = p.inTime(ctx, func(ctx context.Context) error {
				launched, err = p.Protocol.Launch(ctx, l.cfg.Host, spec)
				return err
			})
			return launched, err
		}
	}
	tried := p.tried()
	launched, err := launch(pluginlog.NewContext(ctx, u.log), spec)
	if err != nil {
		return nil, pluginlog.WithLastWords(p.blocked(err, tried), u.log, began)
	}
	proc := &process{PluginProcess: launched, unit: u, plugin: p, generation: generation, began: began}
	if p.fronted() {
		proc.front = u.front.Load()
	}
	return proc, nil
}

// inTime calls do with a context that ends after the plugin's StartTimeout. That is the time for what others decide. It does not include
// the copying of the program and the start of the process: a busy host may do that for many plugins at the same time.
func (p Plugin) inTime(ctx context.Context, do func(context.Context) error) error {
	late := fmt.Errorf("it was not started within its startTimeout, %v", p.startTimeout())
	ctx, cancel := context.WithTimeoutCause(ctx, p.startTimeout(), late)
	defer cancel()
	err := do(ctx)
	if err != nil && errors.Is(context.Cause(ctx), late) {
		return fmt.Errorf("%w: %w", late, err)
	}
	return err
}

// nextSocket returns the socket path of the next process. Each process has its own path, and those of survivors are skipped.
func (u *unit) nextSocket(dir string, needsDir bool) string {
	for {
		path, room := socketPath(dir, u.name, int(u.socketCounter.Add(1)), needsDir)
		if _, err := os.Lstat(cmp.Or(room, path)); err != nil {
			return path
		}
	}
}

// output returns the log of the unit, or that of the process, which is another one if an earlier launcher started the process.
func (u *unit) output() plugin.Log {
	if p, runs := u.Process().(*process); runs {
		return p.Logs()
	}
	return u.log
}

func (u *unit) closeLog() {
	closing, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = u.log.Close(closing) // after an error, a slow handler loses the last records
}

// FollowHealth implements [supervise.Process].
func (p *process) FollowHealth(ctx context.Context, found func(machine.HealthFound)) {
	if !supervise.AwaitFirstCheck(ctx) {
		return
	}
	conn, service := p.Health()
	if conn == nil {
		dialed, err := dialHealth(p.plugin, p.PluginSocket())
		if err != nil {
			p.unit.launcher.cfg.Observe(plugin.Event{
				Time: time.Now(), Kind: plugin.EventFailed, Name: p.unit.name, SocketPath: p.About().Socket,
				Message: fmt.Sprintf("its health cannot be watched: %v", err),
			})
			return
		}
		defer dialed.Close() // cannot fail
		conn = dialed
	}
	checks := p.plugin.checks(p.PluginSocket())
	checks.Service, checks.Crowd = service, &p.unit.launcher.crowd
	supervise.FollowHealth(ctx, conn, checks, found)
}

// dialHealth connects to the plugin. If the plugin runs as another user, a process of that user must listen: the plugin could replace its
// socket by a link to a socket that it may not connect to itself.
func dialHealth(p *Plugin, socket string) (*grpc.ClientConn, error) {
	if p.User == "" {
		return grpcsock.Dial(socket)
	}
	uid, err := account.UserID(p.User)
	if err != nil {
		return nil, err
	}
	return grpcsock.Dial(socket, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return peerauth.ByUser(ctx, socket, uid)
	}))
}

func (p *process) About() machine.Process {
	about := machine.Process{Identity: p.Tag(), PID: p.PID(), Socket: p.PluginSocket()}
	if p.front != nil {
		about.Socket = p.front.Path()
	}
	return about
}

func (p *process) Wait(ctx context.Context) error {
	select {
	case <-p.Done():
		p.leave(cancelledContext)
		if errors.Is(p.Err(), host.ErrTerminated) {
			return nil
		}
		return pluginlog.WithLastWords(p.Err(), p.Logs(), p.began)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *process) Terminate(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.plugin.stopTimeout())
	defer cancel()
	calls, done := context.WithTimeout(ctx, p.plugin.stopTimeout()/2)
	p.leave(calls)
	done()
	_ = p.PluginProcess.Terminate(ctx) // the exit status after a stop is not reported
}
