package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/launch"
	"github.com/patchbay-dev/patchbay/internal/launch/account"
	"github.com/patchbay-dev/patchbay/internal/launch/activator"
	"github.com/patchbay-dev/patchbay/internal/launch/machine"
	"github.com/patchbay-dev/patchbay/internal/peerauth"
	"github.com/patchbay-dev/patchbay/internal/pendingcalls"
	"github.com/patchbay-dev/patchbay/internal/registration"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// connector is what a [Protocol] may also be: it connects to where its plugins serve.
type connector interface {
	// Dial connects to an endpoint.
	Dial(ctx context.Context, endpoint string) (net.Conn, error)
	// Interceptor returns the interceptor for the calls to an endpoint; nil if there is none.
	Interceptor(endpoint string) grpc.StreamClientInterceptor
}

const (
	// behindName is the directory, in the plugin directory, with the sockets of processes behind a front. It is hidden, so that it is not
	// searched for plugins.
	behindName = ".launched"
	// Socket names are NAME.N.sock. N counts processes from 1; 0 is the front.
	frontSocketNumber = 0
	frontSuffix       = ".0.sock"
	// connectTimeout is how long a process may take to accept a connection and speak HTTP/2 on it. An unused connection is closed after
	// idleTimeout. After a failed attempt, the next one waits for reconnectPause.
	connectTimeout, idleTimeout, reconnectPause = 5 * time.Second, time.Minute, 20 * time.Millisecond
)

// cancelledContext is cancelled already.
var cancelledContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// fronted reports whether the host listens at the plugin's socket and forwards calls to the processes behind it.
func (p Plugin) fronted() bool {
	return p.OnDemand || p.Upgrade == plugin.UpgradeHandover && !p.NoSocket
}

func (p Plugin) settings() activator.Settings {
	return activator.Settings{OnDemand: p.OnDemand, Idle: cmp.Or(p.Idle, launch.DefaultIdle), Patience: p.startTimeout()}
}

// newFront returns the front of a plugin, which does not answer yet.
func (u *unit) newFront(p Plugin) *activator.Front {
	path, _ := socketPath(u.launcher.cfg.Dir, u.name, frontSocketNumber, false)
	return activator.New(u.name, path, u.launcher.budget, frontOwner{u}, p.settings())
}

// frontOwner implements [activator.Owner].
type frontOwner struct{ *unit }

func (o frontOwner) Unneeded(t *activator.Target) {
	if p, ok := o.Process().(*process); ok && p.target.Load() == t {
		o.unit.Unneeded(p)
	}
}

// setFront creates or updates the front of the unit, if the plugin needs one. A front that is not needed any more is closed with its last
// process, or when the plugin is registered without it. The caller holds Launcher.mu.
func (u *unit) setFront(p Plugin) {
	f := u.front.Load()
	switch {
	case p.fronted() && f == nil:
		u.front.Store(u.newFront(p))
	case p.fronted():
		f.Set(p.settings())
	case f != nil:
		f.Set(activator.Settings{})
	}
}

// announceIdle makes the plugin idle until a call needs it. If its announcement is not known, it is started once to learn it. Launcher.mu
// is held.
func (u *unit) announceIdle(p Plugin) {
	f := u.front.Load()
	said := p.Announce
	if said.Type == "" {
		said, _ = u.launcher.cfg.Registrations.Announced(f.Path())
	}
	if said.Type != "" {
		_, err := u.launcher.makeDir(false)
		if err == nil {
			err = f.Open(context.Background(), said)
		}
		if err == nil {
			u.Tell(machine.Offer{})
			return
		}
		u.launcher.cfg.Observe(plugin.Event{Time: time.Now(), Kind: plugin.EventFailed, Name: u.name, SocketPath: f.Path(), Message: err.Error()})
	}
	u.Tell(machine.Start{}) // its outcome shows in the status and in the events
}

// shut stops the unit's front, if it has one, and returns it.
func (u *unit) shut() *activator.Front {
	f := u.front.Load()
	if f == nil {
		return nil
	}
	if err := f.Shut(context.Background()); err != nil {
		u.launcher.cfg.Observe(plugin.Event{
			Time: time.Now(), Kind: plugin.EventFailed, Name: u.name, SocketPath: f.Path(),
			Message: fmt.Sprintf("its socket cannot be removed: %v", err),
		})
	}
	return f
}

// endFront closes the unit's front and waits for its calls. Call it only after the unit has stopped launching.
func (u *unit) endFront() {
	if f := u.shut(); f != nil {
		f.Wait()
	}
}

// verifyAndRoute checks that a process announces the same plugin, and then routes calls to it.
func (u *unit) verifyAndRoute(ctx context.Context, p *process) error {
	conn, err := p.reach(ctx)
	if err != nil {
		return err
	}
	client := registration.New(conn)
	defer client.Close()
	said, err := client.GetInfo(ctx, 0)
	if err != nil {
		return fmt.Errorf("it does not say who it is: %w", err)
	}
	info := plugin.Info{Type: said.Type, Name: said.Name, Versions: said.Versions}
	if err := p.front.Check(info); err != nil {
		return err
	}
	target, err := u.newTarget(p, said.Endpoint)
	if err != nil {
		return err
	}
	p.target.Store(target)
	p.front.Serve(target)
	select {
	case <-p.Done(): // Wait may have called leave before the target was stored
		p.leave(cancelledContext)
		return errors.New("it ended while it was asked who it is")
	default:
	}
	if err := p.front.Open(ctx, info); err != nil {
		return err
	}
	if registered, reason, told := p.front.Status(); told {
		_ = client.Notify(ctx, 0, registered, reason) // a plugin may ignore the notification
	}
	return nil
}

// reach connects to the registration of a process as soon as it serves.
func (p *process) reach(ctx context.Context) (conn *net.UnixConn, err error) {
	// There is no event when the process listens. A pause of a twentieth of the time so far delays the start by at most 5 %.
	for begin := time.Now(); ; {
		if conn, err = p.dial(ctx, p.PluginSocket()); err == nil {
			return conn, nil
		}
		if ctx.Err() == nil && !sock.IsRefused(err) && !sock.IsGone(err) {
			return nil, err
		}
		if !backoff.Pause(ctx, min(max(time.Since(begin)/20, time.Millisecond), 100*time.Millisecond)) {
			return nil, context.Cause(ctx)
		}
	}
}

// dial connects to a socket of the process. If the plugin runs as another user, dial fails unless a process of that user listens. This
// process itself serves the registration of a plugin of a foreign protocol, so that is not checked.
func (p *process) dial(ctx context.Context, path string) (*net.UnixConn, error) {
	if p.plugin.User+p.plugin.Group == "" || p.plugin.Protocol != nil && path == p.PluginSocket() {
		return sock.Dial(ctx, path)
	}
	uid, err := account.UserID(p.plugin.User)
	if err != nil {
		return nil, err
	}
	return peerauth.ByUser(ctx, path, uid)
}

// newTarget returns the connection over which the front forwards calls to this process.
func (u *unit) newTarget(p *process, endpoint string) (*activator.Target, error) {
	endpoint = cmp.Or(endpoint, p.PluginSocket())
	if !filepath.IsAbs(endpoint) {
		return nil, fmt.Errorf("it announces endpoint %q, which is not an absolute path", endpoint)
	}
	owner := uint32(math.MaxUint32)
	if p.plugin.User != "" {
		uid, err := account.UserID(p.plugin.User)
		if err != nil {
			return nil, err
		}
		owner = uid
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		conn, err := p.dial(ctx, endpoint)
		if sock.IsGone(err) {
			u.Tell(machine.SocketLost{Process: p.generation})
		}
		return conn, err
	}
	var intercept grpc.StreamClientInterceptor
	if c, ok := p.plugin.Protocol.(connector); ok {
		dial = func(ctx context.Context) (net.Conn, error) { return c.Dial(ctx, endpoint) }
		intercept = c.Interceptor(endpoint)
	}
	services := h2proxy.NewClient(h2proxy.ClientConfig{
		Dial: dial, Timeout: connectTimeout, Idle: idleTimeout, Pause: reconnectPause, Owner: owner,
		Pending: pendingcalls.At(endpoint), Intercept: intercept,
	})
	return &activator.Target{
		Services:   services,
		Notify:     p.notify,
		Close:      func() { _ = services.Close() }, // it never fails
		Generation: uint64(p.generation),
	}, nil
}

func (p *process) notify(ctx context.Context, registered bool, reason string) error {
	conn, err := p.dial(ctx, p.PluginSocket())
	if err != nil {
		return err
	}
	client := registration.New(conn)
	return errors.Join(client.Notify(ctx, connectTimeout, registered, reason), client.Close())
}

// leave sends no more calls to the process, which has exited or will be stopped. It waits for calls in progress until ctx ends.
func (p *process) leave(ctx context.Context) {
	if t := p.target.Load(); t != nil {
		p.front.Retire(ctx, t)
	}
}

// FrontAt returns the plugin for which this launcher answers at a socket, and its state. It reports false for other sockets.
func (l *Launcher) FrontAt(socket string) (p Plugin, state plugin.State, ok bool) {
	u := l.fronting(socket)
	if u == nil {
		return Plugin{}, "", false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return *u.plugin, u.Status().State, true
}

// fronting returns the unit whose front is at a socket; nil if there is none.
func (l *Launcher) fronting(socket string) *unit {
	dir, file := filepath.Split(socket)
	name, ok := strings.CutSuffix(file, frontSuffix)
	if !ok || filepath.Clean(dir) != l.cfg.Dir {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	u := cmp.Or(l.units[name], l.leaving[name])
	if u == nil || u.front.Load() == nil {
		return nil
	}
	return u
}

// makeDir creates the plugin directory and, if behind is set, the directory for sockets behind fronts. It returns the last one.
func (l *Launcher) makeDir(behind bool) (dir string, err error) {
	dir = l.cfg.Dir
	if err = os.MkdirAll(dir, dirMode); err == nil && behind {
		dir = filepath.Join(dir, behindName)
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		err = fmt.Errorf("create the plugin directory for its socket: %w", err)
	}
	return dir, err
}

func (u *unit) reopen() {
	f := u.front.Load()
	if f == nil {
		return
	}
	if err := f.Reopen(context.Background()); err != nil {
		u.launcher.cfg.Observe(plugin.Event{Time: time.Now(), Kind: plugin.EventFailed, Name: u.name, SocketPath: f.Path(), Message: err.Error()})
	}
}
