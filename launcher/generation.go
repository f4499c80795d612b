package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/grpcsock"
	"github.com/patchbay-dev/patchbay/internal/judged"
	"github.com/patchbay-dev/patchbay/internal/launch/output"
	"github.com/patchbay-dev/patchbay/internal/launch/supervise"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

const (
	// settled is how long a plugin that does not serve has to run to be ready: nothing else tells that it came up.
	settled = time.Second
	// lastWords is how many of the last lines on standard error explain the end of a plugin.
	lastWords = 5
)

// generation is a plugin under supervision from a start or a replacement to its stop: a row of lives.
type generation struct {
	unit   *unit
	plugin Plugin
	super  *supervise.Supervisor
	cancel context.CancelFunc
	// done is closed when the supervision has ended and nothing of it is left.
	done chan struct{}
	// first is the first attempt to start a process.
	first *attempt
	// ready is closed when a life is ready. unready is told why none is: the plugin was refused, or it is over.
	ready   chan struct{}
	unready chan error

	mu   sync.Mutex // guards what follows
	next *attempt   // the one that goes on or comes next
	life life
}

type attempt struct {
	done chan struct{} // closed when it is known whether it runs
	err  error         // why it does not; valid when done is closed
}

func newAttempt() *attempt { return &attempt{done: make(chan struct{})} }

type life struct {
	process *host.PluginProcess // nil between two
	socket  string
	ready   bool
	unready error // why it is not ready, if there is more to say
	health  supervise.HealthState
	since   time.Time // when it became ready or unresponsive
}

// newGeneration starts the supervision of the unit's plugin as it is configured now.
func (u *unit) newGeneration() (*generation, error) {
	select {
	case <-u.removed:
		return nil, ErrClosed
	default:
	}
	u.mu.Lock()
	plugin := u.plugin
	u.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	first := newAttempt()
	g := &generation{
		unit: u, plugin: plugin, cancel: cancel, done: make(chan struct{}),
		first: first, next: first, ready: make(chan struct{}), unready: make(chan error, 1),
	}
	g.super = supervise.New(plugin.Restart, g, g.observe)
	u.launcher.work.Go(func() {
		defer close(g.done)
		defer cancel()
		// How it ended is in its status.
		_ = g.super.Run(ctx)
		g.giveUp(errors.New("it has ended"))
	})
	return g, nil
}

// start has the next life begin now if it pauses. It returns when a process runs, or why it could not be started.
func (g *generation) start() error {
	g.mu.Lock()
	runs, next := g.life.process != nil, g.next
	g.mu.Unlock()
	if runs {
		return nil
	}
	g.super.Start()
	return g.await(next)
}

// await waits until the process of an attempt runs, or returns why it could not be started.
func (g *generation) await(a *attempt) error {
	select {
	case <-a.done:
		return a.err
	case <-g.done:
	case <-g.unit.removed:
	}
	select {
	case <-a.done: // before it ended
		return a.err
	default:
		return ErrClosed
	}
}

// end ends the present life and all that would follow, and waits until nothing is left.
func (g *generation) end() {
	g.cancel()
	<-g.done
}

// over says whether the supervision has come to its end by itself: nothing runs and nothing is going to.
func (g *generation) over() bool {
	switch g.super.Status().State {
	case supervise.Failed, supervise.Stopped:
		return true
	default:
		return false
	}
}

// Run is one life of the plugin. It implements supervise.Runner.
func (g *generation) Run(ctx context.Context) error {
	p := g.plugin
	spec := host.Spec{
		Name: p.Name, Args: p.Args, Env: p.Env, Dir: p.Dir,
		Controller: p.Controller, Survive: p.Survive, Tag: p.tag(), Grace: p.grace(), Logs: g.unit.log,
		SHA256: p.SHA256, Interpreter: p.Interpreter, Admit: g.unit.launcher.cfg.Admit,
		User: p.User, Group: p.Group, Limits: p.Limits, NoNewPrivs: p.NoNewPrivs,
	}
	if p.Serve {
		// One of a foreign protocol does not make the socket itself: the host does.
		spec.PluginSocket = g.unit.nextSocket(g.plugin.needsRoom())
	}
	began := time.Now()
	process := g.unit.launcher.occupy(g.unit, g.plugin)
	defer g.unit.launcher.vacate(g.unit)
	var err error
	if process == nil {
		process, err = g.launch(ctx, spec)
		err = g.explain(err, began)
	} else {
		spec.PluginSocket = process.PluginSocket()
	}
	if err != nil {
		g.tellStarted(err)
		if ctx.Err() == nil {
			g.unit.observe(EventFailed, "", err.Error())
		}
		g.giveUp(err)
		return err
	}
	g.setLife(life{process: process, socket: spec.PluginSocket, since: began})
	defer g.setLife(life{})
	g.tellStarted(nil) // whoever waits for that asks for the process next

	living, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { g.watch(living, process, spec.PluginSocket) })
	select {
	case <-process.Done():
		err = g.explain(process.Err(), began)
		g.giveUp(cmp.Or(err, errEndedEarly))
	case <-ctx.Done():
		if !g.plugin.Survive || !g.unit.launcher.closing() {
			terminate(process, g.plugin.stopTimeout())
			<-process.Done()
		}
	}
	cancel()
	watching.Wait()
	return err
}

func (g *generation) launch(ctx context.Context, spec host.Spec) (*host.PluginProcess, error) {
	if g.plugin.Protocol != nil {
		return g.plugin.Protocol.Launch(ctx, g.unit.launcher.cfg.Host, spec)
	}
	return g.unit.launcher.cfg.Host.Launch(ctx, spec)
}

func terminate(process *host.PluginProcess, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	// How a process ends that was told to is no news.
	_ = process.Terminate(ctx)
}

// explain adds to the error of a process that ended what it wrote last. It returns nil for a clean end.
func (g *generation) explain(err error, began time.Time) error {
	if err == nil || errors.Is(err, host.ErrTerminated) {
		return nil
	}
	var words []string
	for _, r := range slices.Backward(g.unit.log.Tail(0)) {
		if r.Time.Before(began) || len(words) == lastWords {
			break
		}
		if r.Source == output.Stderr {
			words = append(words, r.Message)
		}
	}
	if len(words) == 0 {
		return err
	}
	slices.Reverse(words)
	return fmt.Errorf("%w; its last words: %s", err, strings.Join(words, " | "))
}

// watch follows a life until ctx ends: when it is ready, and whether it answers.
func (g *generation) watch(ctx context.Context, process *host.PluginProcess, socket string) {
	if socket == "" {
		timer := time.NewTimer(settled)
		defer timer.Stop()
		select {
		case <-timer.C:
			g.setReady()
		case <-ctx.Done():
		case <-process.Done():
		}
		return
	}
	for {
		err := g.unit.launcher.cfg.AwaitRegistered(ctx, socket)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return
		}
		// It may still be registered: its handler may change its mind or be another one.
		g.setUnready(err)
		g.giveUp(err)
	}
	g.setReady()
	g.watchHealth(ctx, socket)
}

// errEndedEarly says why a replacement that ended without an error is none.
var errEndedEarly = errors.New("it ended by itself before it was ready")

// giveUp tells a replacement that waits that there is no use in it. What comes after it was ready is of no interest.
func (g *generation) giveUp(err error) {
	select {
	case g.unready <- err:
	default:
	}
}

func (g *generation) tellStarted(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.next.err = err
	close(g.next.done)
	g.next = newAttempt()
}

func (g *generation) setLife(l life) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.life = l
}

func (g *generation) setUnready(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.life.unready = err
}

func (g *generation) setReady() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.life.ready, g.life.unready, g.life.since = true, nil, time.Now()
	select {
	case <-g.ready:
	default:
		close(g.ready)
	}
}

// adoptedLog returns the log of a process that was not launched with the unit's; nil if there is none.
func (g *generation) adoptedLog() *output.Log {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.life.process != nil && g.life.process.Logs() != g.unit.log {
		return g.life.process.Logs()
	}
	return nil
}

func (g *generation) socket() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.life.socket
}

func (g *generation) observe(s supervise.Status) {
	if s.State == supervise.Failed {
		g.giveUp(s.LastError)
		g.unit.observe(EventFailed, "", s.LastError.Error())
	}
	if l := g.unit.launcher; s.State != supervise.Running && l.hasAdopted(g.unit) {
		l.work.Go(g.unit.takeOver) // it came while a life was just ending
	}
}

// states are those of a Supervisor, of which it does not know whether the plugin that runs is ready.
var states = map[supervise.State]State{
	supervise.Starting: StateStarting, supervise.Running: StateStarting, supervise.Backoff: StateBackoff,
	supervise.Failed: StateFailed, supervise.Stopped: StateStopped,
}

func (g *generation) status() Status {
	supervised := g.super.Status()
	g.mu.Lock()
	life := g.life
	g.mu.Unlock()
	s := Status{
		Name: g.plugin.Name, Since: supervised.Since, Socket: life.socket, Health: string(cmp.Or(life.health, supervise.Unknown)),
		Restarts: supervised.Restarts, NextStart: supervised.NextStart,
	}
	if supervised.LastError != nil {
		s.LastError = supervised.LastError.Error()
	}
	if life.unready != nil {
		s.LastError = life.unready.Error()
	}
	if life.process != nil {
		s.PID = life.process.PID()
	}
	switch s.State = states[supervised.State]; {
	case s.State != StateStarting:
	case life.health == supervise.Unresponsive:
		s.State, s.Since = StateUnresponsive, life.since
	case life.ready:
		s.State, s.Since = StateRunning, life.since
	}
	return s
}

// nextSocket returns the path at which the next life serves. Each has its own, so that an old and a new process never share one.
// One that survived an earlier launcher may still have its own.
func (u *unit) nextSocket(needsRoom bool) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	for {
		u.lives++
		path, room := socketPath(u.launcher.cfg.Dir, u.name, u.lives, needsRoom)
		if _, err := os.Lstat(cmp.Or(room, path)); err != nil {
			return path
		}
	}
}

// watchHealth follows whether a plugin that is ready answers, until ctx ends. One that does not offer grpc.health.v1 is left in peace.
func (g *generation) watchHealth(ctx context.Context, socket string) {
	dial, err := g.healthDialer(socket)
	var conn *grpc.ClientConn
	if err == nil {
		conn, err = grpcsock.Dial(socket, grpc.WithContextDialer(dial))
	}
	if err != nil {
		g.unit.observe(EventFailed, socket, fmt.Sprintf("its health cannot be watched: %v", err))
		return
	}
	health := supervise.NewHealth(conn, func(s supervise.HealthStatus) {
		g.setHealth(s, socket)
		g.super.Health(s)
	})
	// Neither can fail: Run says so, and the connection is closed once.
	_ = errors.Join(health.Run(ctx), conn.Close())
}

// healthDialer returns what connects to the plugin. Of one that makes its socket itself, as another user, that user has to listen: it can
// have a link to somebody else's socket in its place, where it may have no right to call.
func (g *generation) healthDialer(socket string) (func(context.Context, string) (net.Conn, error), error) {
	if g.plugin.User == "" || g.plugin.Protocol != nil {
		return func(ctx context.Context, _ string) (net.Conn, error) { return sock.Dial(ctx, socket) }, nil
	}
	uid, err := host.UserID(g.plugin.User)
	return func(ctx context.Context, _ string) (net.Conn, error) {
		conn, _, err := judged.ByUser(ctx, socket, uid)
		return conn, err
	}, err
}

func (g *generation) setHealth(s supervise.HealthStatus, socket string) {
	g.mu.Lock()
	before := g.life.health
	g.life.health = s.State
	if s.State == supervise.Unresponsive || before == supervise.Unresponsive {
		g.life.since = time.Now()
	}
	g.mu.Unlock()
	switch {
	case s.State == supervise.Unresponsive:
		g.unit.observe(EventUnresponsive, socket, fmt.Sprintf("it does not answer health checks: %v", s.Err))
	case before == supervise.Unresponsive:
		g.unit.observe(EventResponsive, socket, "it answers health checks again")
	case s.State == supervise.NotServing:
		g.unit.observe(EventUnhealthy, socket, "it says that it does not serve: "+cmp.Or(errorText(s.Err), "NOT_SERVING"))
	case before == supervise.NotServing:
		g.unit.observe(EventHealthy, socket, "it says that it serves again")
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
