package pluginwatcher

import (
	"context"
	"errors"

	"github.com/patchbay-dev/patchbay/internal/registration"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// transport reaches plugins over real sockets.
type transport struct {
	peers *sock.Watcher
	boot  string
}

func newTransport() (*transport, error) {
	peers, err := sock.NewWatcher()
	if err != nil {
		return nil, err
	}
	return &transport{peers: peers, boot: sock.BootID()}, nil
}

func (t *transport) Dial(ctx context.Context, path string) (reconciler.Conn, error) {
	client, err := registration.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	return conn{client, t}, nil
}

// Probe connects and closes the connection at once. A connection that ended while somebody still accepts is nothing to keep again, so
// what is watched from then on is the process.
func (t *transport) Probe(ctx context.Context, path string, hint func()) (stop func(), err error) {
	stop, err = t.peers.ProbeWatch(ctx, path, hint)
	if sock.IsBusy(err) || errors.Is(err, sock.ErrNotVisible) {
		return nil, nil // It lives, and cannot be watched.
	}
	return stop, err
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

// Watch keeps the connection, whose end also tells of a plugin that stops to serve while its process lives on. Where it cannot be kept, the
// process is watched.
func (c conn) Watch(hint func()) (stop func(), err error) {
	stop, err = c.Hold(c.transport.peers, hint)
	if err != nil {
		stop, err = c.WatchExit(c.transport.peers, hint)
		_ = c.Close()
	}
	return stop, err
}
