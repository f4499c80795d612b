package pluginwatcher

import (
	"context"

	"github.com/patchbay-dev/patchbay/internal/registration"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// transport reaches plugins over real sockets.
type transport struct {
	exits *sock.Exits
	boot  string
}

func newTransport() (*transport, error) {
	exits, err := sock.NewExits()
	if err != nil {
		return nil, err
	}
	return &transport{exits: exits, boot: sock.BootID()}, nil
}

func (t *transport) Dial(ctx context.Context, path string) (reconciler.Conn, error) {
	client, err := registration.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	return conn{client, t}, nil
}

func (t *transport) Probe(ctx context.Context, path string) error {
	_, err := sock.Probe(ctx, path)
	return err
}

func (t *transport) Refused(err error) bool {
	return sock.IsRefused(err) || sock.IsGone(err)
}

// conn is a connection to the registration service of one plugin.
type conn struct {
	*registration.Client
	transport *transport
}

func (c conn) GetInfo(ctx context.Context) (reconciler.Info, error) {
	info, err := c.Client.GetInfo(ctx)
	return reconciler.Info(info), err
}

func (c conn) Peer() reconciler.Peer {
	peer := c.Client.Peer()
	if peer.PID == 0 || peer.StartTime == 0 || c.transport.boot == "" {
		return reconciler.Peer{}
	}
	return reconciler.Peer{PID: peer.PID, StartTime: peer.StartTime, Boot: c.transport.boot}
}

func (c conn) WatchExit(exited func()) (stop func(), err error) {
	return c.transport.exits.Watch(c.Socket(), exited)
}
