package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/registration"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

type transport struct {
	peers *sock.Watcher
	gate  *gate
	roots []string
	// asking limits the connections to plugins that are neither registered nor refused yet.
	asking *asking
}

func (t *transport) Dial(ctx context.Context, timeout time.Duration, path string, id plugin.SocketID) (reconciler.Conn, error) {
	place, err := t.begin(ctx, timeout, path)
	if err != nil {
		return nil, err
	}
	c, err := t.dial(ctx, path, id)
	if err != nil {
		place.end()
		return nil, err
	}
	c.place = place
	return c, nil
}

// begin blocks until one more plugin of the owner of a socket may be asked. Plugins of root and of the host's user do not wait.
func (t *transport) begin(ctx context.Context, timeout time.Duration, path string) (*place, error) {
	if t.gate.trust.Alone() {
		return nil, nil
	}
	info, err := sock.Stat(path)
	if err != nil || t.gate.trust.Privileged(info.UID) {
		return nil, nil // if the socket is gone, the dial fails
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return t.asking.begin(ctx, info.UID, reconciler.IsFirst(ctx))
}

func (t *transport) dial(ctx context.Context, path string, id plugin.SocketID) (*conn, error) {
	began := time.Now()
	socket, reached, err := t.connect(ctx, path)
	if err == nil {
		t.asking.measured(&t.asking.connects, began)
	}
	if moved := checkSame(path, id, reached); moved != nil {
		if err == nil {
			moved = errors.Join(moved, socket.Close())
		}
		err = moved
	}
	if err != nil {
		return nil, err
	}
	account := plugin.Account{UID: reached.UID, Known: true}
	peer, err := sock.PeerOf(socket)
	// gofail: var transportPeer string
	// err = errors.New(transportPeer)
	if err == nil {
		account, err = t.gate.account(ctx, path, reached.UID, peer)
	}
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return nil, errors.Join(err, socket.Close())
	}
	c := &conn{Client: registration.New(socket), transport: t, account: account, peer: peer}
	if account.Launched {
		c.launch = t.gate.launched(path)
	}
	return c, nil
}

// checkSame returns an error if the socket of a dial is not the one with the identity id, which is any socket if id is zero. If reached is
// zero, the dial did not identify the socket, so the one that is now at the path counts.
func checkSame(path string, id plugin.SocketID, reached sock.Info) (err error) {
	if id == (plugin.SocketID{}) {
		return nil
	}
	info := reached
	if info == (sock.Info{}) {
		info, err = sock.Stat(path)
	}
	if err == nil && (info.ID.Device != id.Device || info.ID.Inode != id.Inode) {
		err = fmt.Errorf("%s is not the socket that was found there: %w", path, cache.ErrRetry)
	}
	return err
}

// connect connects to a socket and returns it. If only root and the host's user can create files, the file at the path has been checked
// already, and connect returns the zero Info.
func (t *transport) connect(ctx context.Context, path string) (socket *net.UnixConn, reached sock.Info, err error) {
	// gofail: var transportConnect string
	// return nil, sock.Info{}, errors.New(transportConnect)
	launched := t.gate.launched(path) != nil
	if t.gate.trust.Alone() && (!launched || slices.Contains(t.roots, filepath.Dir(path))) {
		socket, err = sock.Dial(ctx, path)
		return socket, sock.Info{}, t.explain(err, path)
	}
	root := slices.IndexFunc(t.roots, func(root string) bool { return strings.HasPrefix(path, root+string(filepath.Separator)) })
	socket, reached, err = sock.DialBelow(ctx, t.roots[max(root, 0)], path)
	if err != nil {
		return nil, sock.Info{}, t.explain(err, path)
	}
	if err := t.gate.trust.Socket(path, reached.UID, reached.GID); err != nil && !launched {
		return nil, reached, errors.Join(err, socket.Close())
	}
	return socket, reached, nil
}

// explain adds a remedy to a permission error.
func (t *transport) explain(err error, path string) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	info, statErr := sock.Stat(path)
	if statErr != nil {
		return err
	}
	return explainDenied(err, path, info)
}

// Latencies implements [reconciler.Transport].
func (t *transport) Latencies() (connecting, answering time.Duration) { return t.asking.latencies() }

// Probe connects to the socket, closes the connection, and watches the process. It does not watch the connection, because most probes
// follow the end of a connection, while the process still runs.
func (t *transport) Probe(ctx context.Context, path string, id plugin.SocketID, hint func()) (stop func(), err error) {
	// gofail: var transportProbe string
	// return nil, errors.New(transportProbe)
	stop, err = t.peers.ProbeWatch(ctx, path, hint)
	if moved := checkSame(path, id, sock.Info{}); moved != nil {
		if stop != nil {
			stop()
		}
		return nil, moved
	}
	if sock.IsBusy(err) || errors.Is(err, sock.ErrNotVisible) {
		return nil, nil // a process accepts, but cannot be watched
	}
	return stop, err
}

func (t *transport) Refused(err error) bool {
	return sock.IsRefused(err) || sock.IsGone(err)
}

func (t *transport) WatchProcess(peer plugin.Peer, hint func()) (stop func(), err error) {
	return t.peers.WatchPID(peer.PID, peer.Start, hint)
}

func (t *transport) Listens(socket plugin.SocketID, peer plugin.Peer) bool {
	listens, err := sock.Listens(socket, peer.PID)
	return listens || err != nil
}

// Source implements [reconciler.Transport].
func (t *transport) Source(socketPath string) plugin.Source { return t.gate.source(socketPath) }

// Withdrawn implements [reconciler.Transport].
func (t *transport) Withdrawn(socketPath string) error { return t.gate.why(socketPath) }

type conn struct {
	*registration.Client
	transport *transport
	account   plugin.Account
	launch    Launch           // nil unless it was launched
	peer      sock.Credentials // zero if unknown
	place     *place           // held until Watch or Close
}

func (c *conn) GetInfo(ctx context.Context, timeout time.Duration) (plugin.Info, error) {
	info, err := c.info(ctx, timeout)
	if err == nil {
		err = c.transport.gate.endpoint(info.Type, info.Endpoint, c.account) // info is returned too
	}
	return info, err
}

// info returns the type and name of the plugin: from the introduction of a launched plugin, or by a call to GetInfo.
func (c *conn) info(ctx context.Context, timeout time.Duration) (plugin.Info, error) {
	if c.launch != nil {
		if said := c.launch.Introduction(); said != nil {
			if info, err := registration.ParseInfo(said); err == nil {
				c.place.answers()
				return info, nil
			}
		}
	}
	asked, returned := c.place.ask(ctx)
	began := time.Now()
	info, err := c.Client.GetInfo(asked, timeout)
	if err == nil {
		c.transport.asking.measured(&c.transport.asking.answers, began)
	}
	if err != nil && errors.Is(context.Cause(asked), errPutOff) {
		err = c.transport.asking.unasked(c.account.UID, errPutOff)
		_ = c.Close() // the other plugin waits for the place
	}
	returned()
	return info, err
}

// Notify returns no error if the plugin does not implement the method.
func (c *conn) Notify(ctx context.Context, timeout time.Duration, registered bool, reason string) error {
	err := c.Client.Notify(ctx, timeout, registered, reason)
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return err
}

func (c *conn) Peer() plugin.Peer {
	if c.peer.PID == 0 || c.peer.Start == 0 || c.peer.Boot == "" {
		return plugin.Peer{}
	}
	return c.peer.Peer
}

func (c *conn) Account() plugin.Account { return c.account }

// Close closes the connection and gives back its place.
func (c *conn) Close() error {
	defer c.place.end()
	return c.Client.Close()
}

// Watch watches the connection, which also ends if the plugin stops serving while its process runs. If that fails, it watches the process.
// If this process listens on behalf of a launched plugin, there is nothing to watch, because its socket disappears with the process.
func (c *conn) Watch(hint func()) (stop func(), err error) {
	defer c.place.end() // from now on, the machine counts the plugin
	if c.account.Launched && c.peer.PID == os.Getpid() {
		return func() {}, c.Close()
	}
	stop, err = c.Hold(c.transport.peers, hint)
	if err != nil {
		stop, err = c.WatchExit(c.transport.peers, hint)
		_ = c.Close()
	}
	return stop, err
}
