// Package endpoint connects a handler to the endpoint of a plugin and calls it there, bounded in time and text. It is for the handler's own
// calls; consumers of the plugin use the shared connection of the registry.
package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/patchbay-dev/patchbay/internal/grpcsock"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// maxAnswer bounds one answer of a plugin in bytes.
const maxAnswer = 4 << 20

// Dial returns a connection to the Unix socket at path, which may be longer than a socket address can hold. It does not block: the
// connection is made with the first call, and made anew within a second when it broke, but only to the user who served it first. The caller
// closes it.
func Dial(path string) (*grpc.ClientConn, error) {
	o := &owner{path: path}
	return grpcsock.Dial(path,
		grpc.WithContextDialer(o.dial),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second, // a plugin on a busy machine may need that for the handshake; each call has its own timeout
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
	)
}

// owner is the user who served an endpoint when it was connected to first. That one was judged just before, when the plugin registered.
type owner struct {
	path string

	mu    sync.Mutex
	known bool
	uid   uint32
}

// dial connects to the endpoint, unless another user serves it by now.
func (o *owner) dial(ctx context.Context, _ string) (net.Conn, error) {
	conn, err := sock.Dial(ctx, o.path)
	if err != nil {
		return nil, err
	}
	peer, err := sock.PeerOf(conn)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return conn, nil
	case err != nil:
		return nil, errors.Join(err, conn.Close())
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known && o.uid != peer.UID {
		return nil, errors.Join(fmt.Errorf("the endpoint %s is served by user %d and no longer by user %d; a plugin whose user changes "+
			"registers anew", o.path, peer.UID, o.uid), conn.Close())
	}
	o.known, o.uid = true, peer.UID
	return conn, nil
}
