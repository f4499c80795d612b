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
	"github.com/patchbay-dev/patchbay/internal/grpcsock"
	"github.com/patchbay-dev/patchbay/internal/judged"
	"github.com/patchbay-dev/patchbay/internal/launch/machine"
	"github.com/patchbay-dev/patchbay/internal/launch/output"
	"github.com/patchbay-dev/patchbay/internal/launch/supervise"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// dirMode is that of a plugin directory that somebody removed.
const dirMode = 0o750

// unit is one plugin to launch, with what keeps it running.
type unit struct {
	*supervise.Unit[Plugin]
	name     string
	launcher *Launcher
	log      *output.Log
	lives    atomic.Int64 // that were begun, to name their sockets
	plugin   Plugin       // as it is configured now; guarded by Launcher.mu
}

func newUnit(l *Launcher, p Plugin) *unit {
	u := &unit{
		launcher: l, name: p.Name, plugin: p, log: output.New(output.Config{Name: p.Name, Handler: l.cfg.Output, Rate: p.LogRate}),
	}
	u.Unit = supervise.New(supervise.Config[Plugin]{
		Launch: u.launch,
		Ready: func(ctx context.Context, proc supervise.Process) error {
			err := l.cfg.AwaitRegistered(ctx, proc.About().Socket)
			if p, is := proc.(*process); is && err == nil {
				p.Settled()
			}
			return err
		},
		Follow: u.followHealth,
		Observe: func(e Event) {
			e.Name = p.Name
			l.cfg.Observe(e)
		},
		Pace: supervise.Real{WaitGroup: &l.work},
	})
	return u
}

// configure gives the unit other details. Launcher.mu is held.
func (u *unit) configure(p Plugin) {
	if u.plugin.LogRate != p.LogRate {
		u.log.SetRate(p.LogRate)
	}
	changed := !u.plugin.same(p)
	u.plugin = p
	u.Configure(p, p.about(), changed)
}

// launch starts one process of a plugin.
func (u *unit) launch(ctx context.Context, p Plugin) (supervise.Process, error) {
	l := u.launcher
	spec := p.Spec
	spec.Tag, spec.Grace, spec.Logs, spec.Admit = p.identity(), p.grace(), u.log, l.cfg.Admit
	if p.Serve {
		if err := os.MkdirAll(l.cfg.Dir, dirMode); err != nil {
			return nil, fmt.Errorf("create the plugin directory for its socket: %w", err)
		}
		// One of a foreign protocol does not make the socket itself: the host does.
		spec.PluginSocket = u.nextSocket(p.needsRoom())
	}
	began := time.Now()
	launch := l.cfg.Host.Launch
	if p.Protocol != nil {
		launch = func(ctx context.Context, spec host.Spec) (*host.PluginProcess, error) {
			return p.Protocol.Launch(ctx, l.cfg.Host, spec)
		}
	}
	launched, err := launch(ctx, spec)
	if err != nil {
		return nil, host.WithLastWords(err, u.log.LastWords(began))
	}
	return &process{launched, p.stopTimeout()}, nil
}

// nextSocket returns the path at which the next life serves. Each has its own, so that an old and a new process never share one.
// One that survived an earlier launcher may still have its own.
func (u *unit) nextSocket(needsRoom bool) string {
	for {
		path, room := socketPath(u.launcher.cfg.Dir, u.name, int(u.lives.Add(1)), needsRoom)
		if _, err := os.Lstat(cmp.Or(room, path)); err != nil {
			return path
		}
	}
}

// output returns the log of the unit, or that of a process that an earlier launcher had started.
func (u *unit) output() *output.Log {
	if p, runs := u.Process().(*process); runs {
		return p.Logs()
	}
	return u.log
}

func (u *unit) closeLog() {
	closing, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	// A handler of the host that is stuck loses the rest.
	_ = u.log.Close(closing)
}

// followHealth tells whether a plugin that is ready answers, until ctx ends. One that does not offer grpc.health.v1 is left in peace.
func (u *unit) followHealth(ctx context.Context, p Plugin, proc supervise.Process, found func(machine.HealthFound)) {
	socket := proc.About().Socket
	dial, err := healthDialer(p, socket)
	var conn *grpc.ClientConn
	if err == nil {
		conn, err = grpcsock.Dial(socket, grpc.WithContextDialer(dial))
	}
	if err != nil {
		u.launcher.cfg.Observe(Event{
			Time: time.Now(), Kind: EventFailed, Name: u.name, Socket: socket, Message: fmt.Sprintf("its health cannot be watched: %v", err),
		})
		return
	}
	supervise.FollowHealth(ctx, conn, found)
	_ = conn.Close() // once, which cannot fail
}

// healthDialer returns what connects to the plugin. Of one that makes its socket itself, as another user, that user has to listen: it can
// have a link to somebody else's socket in its place, where it may have no right to call.
func healthDialer(p Plugin, socket string) (func(context.Context, string) (net.Conn, error), error) {
	if p.User == "" || p.Protocol != nil {
		return func(ctx context.Context, _ string) (net.Conn, error) { return sock.Dial(ctx, socket) }, nil
	}
	uid, err := host.UserID(p.User)
	return func(ctx context.Context, _ string) (net.Conn, error) {
		conn, _, err := judged.ByUser(ctx, socket, uid)
		return conn, err
	}, err
}

// process is a process of a plugin as what keeps it running sees it.
type process struct {
	*host.PluginProcess
	stopTimeout time.Duration
}

// About implements [supervise.Process].
func (p *process) About() machine.Process {
	return machine.Process{Identity: p.Tag(), PID: p.PID(), Socket: p.PluginSocket()}
}

// Wait implements [supervise.Process].
func (p *process) Wait(ctx context.Context) error {
	select {
	case <-p.Done():
		if errors.Is(p.Err(), host.ErrTerminated) {
			return nil
		}
		return host.WithLastWords(p.Err(), p.LastWords())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Terminate implements [supervise.Process].
func (p *process) Terminate(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.stopTimeout)
	defer cancel()
	// How a process ends that was told to is no news.
	_ = p.PluginProcess.Terminate(ctx)
}
