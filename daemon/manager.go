package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// listenControl returns a listener on the control socket: the one that the service manager passed, or a new one.
func (d *Daemon) listenControl() (net.Listener, error) {
	if passed := d.config.ControlListener; passed != nil {
		d.log.Info("the control socket was passed by the service manager", "controlSocket", d.config.ControlSocket)
		return passed, nil
	}
	l, err := sock.Listen(d.config.ControlSocket, controlMode)
	if err != nil {
		return nil, advise(fmt.Errorf("cannot serve the control API: %w", err), "control socket")
	}
	return l, nil
}

// listenTCP listens on an address, and waits for at most a second for whoever listens there: a daemon that was killed while it began to
// start a process shared its listener with that one.
func listenTCP(ctx context.Context, addr string) (net.Listener, error) {
	for end := time.Now().Add(time.Second); ; {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) || !pause(ctx, 10*time.Millisecond) {
			return l, err
		}
	}
}

// checkPassed says what is wrong with the sockets that the service manager passed.
func (c Config) checkPassed() error {
	if l := c.HTTPListener; l != nil {
		addr, ok := l.Addr().(*net.TCPAddr)
		if !ok || !addr.IP.IsLoopback() {
			return fmt.Errorf("cannot serve HTTP on the socket %s that the service manager passed: it must listen on a loopback address, "+
				"for example ListenStream=127.0.0.1:8080", l.Addr())
		}
	}
	if l := c.ControlListener; l != nil {
		if _, ok := l.(*net.UnixListener); !ok {
			return fmt.Errorf("cannot serve the control API on the socket %s that the service manager passed: use ListenStream= with a path",
				l.Addr())
		}
	}
	return nil
}

// notify tells the service manager something. That it cannot be told is no reason to end.
func (d *Daemon) notify(assignments ...string) { d.warn(d.config.Notifier.Notify(assignments...)) }

// beat tells the service manager, until ctx ends, that the daemon lives, as often as it wants to hear that: when what finds and what
// registers plugins has answered. A plugin or handler that hangs is no reason to be started again.
func (d *Daemon) beat(ctx context.Context, runtime *patchbay.Runtime) {
	interval := d.config.Notifier.Watchdog() / 2
	if interval <= 0 {
		return
	}
	next := time.NewTicker(interval)
	defer next.Stop()
	for ctx.Err() == nil {
		check, cancel := context.WithTimeout(ctx, interval)
		err := runtime.Check(check)
		cancel()
		switch {
		case err == nil:
			d.notify("WATCHDOG=1")
		case ctx.Err() == nil:
			d.log.Error("the daemon does not tell the service manager that it lives", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-next.C:
		}
	}
}

// run runs the runtime until ctx ends or something fails, tells the service manager of it, and returns when the runtime has ended.
func (d *Daemon) run(ctx context.Context, runtime *patchbay.Runtime) error {
	ran := make(chan error, 1)
	go func() { ran <- runtime.Run(ctx) }()
	defer context.AfterFunc(ctx, func() { d.notify("STOPPING=1") })()
	select {
	case <-runtime.Ready():
	case err := <-ran:
		return err
	}
	plugins := len(runtime.Plugins())
	d.log.Info("plugin directories have been searched", "plugins", plugins)
	close(d.ready)
	d.notify("READY=1", fmt.Sprintf("STATUS=%d plugins were there at the start.", plugins))
	defer inBackground(ctx, func(ctx context.Context) { d.beat(ctx, runtime) })()
	return <-ran
}
