package daemon

import (
	"context"
	"fmt"
	"net"

	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/daemon/telemetry"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// listenControl returns a listener on the control socket: the one that the service manager passed, or a new one.
func (d *Daemon) listenControl() (net.Listener, error) {
	if passed := d.options.ControlListener; passed != nil {
		d.log.Info("the control socket was passed by the service manager", "controlSocket", d.options.ControlSocket)
		return passed, nil
	}
	l, err := sock.Listen(d.options.ControlSocket, controlMode)
	if err != nil {
		return nil, server.AdviseOnPath(fmt.Errorf("cannot serve the control API: %w", err), "control socket")
	}
	return l, nil
}

// listenHTTP returns the configured HTTP listener; nil for none.
func (c *Options) listenHTTP() (net.Listener, error) {
	if c.HTTPListener != nil {
		return c.HTTPListener, nil
	}
	if c.HTTP == "" {
		return nil, nil
	}
	addr, err := telemetry.ParseHTTPAddr(c.HTTP)
	if err != nil {
		return nil, err
	}
	// gofail: var daemonHTTP string
	// return nil, fmt.Errorf("cannot serve HTTP: %s; choose another address", daemonHTTP)
	listener, err := server.ListenTCP(context.Background(), addr.String())
	if err != nil {
		return nil, fmt.Errorf("cannot serve HTTP: %w; choose another address", err)
	}
	return listener, nil
}
