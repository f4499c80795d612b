package locks

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/fleet"
	"github.com/patchbay-dev/patchbay/proxy"
)

// Hold is one period during which the node holds a lock.
type Hold struct {
	// Token is the fencing token. It grows whenever the lock passes on, even when etcd is restored from a backup: it is the sum of the
	// revision of etcd when the node took the lock and a base that nodes raise when they see revisions go back.
	Token int64

	lock  fleet.Lock
	lose  context.CancelFunc
	ended context.Context //nolint:containedctx // It is the life of the hold.
	calls atomic.Int64    // those in progress
}

// Done is closed when the lock is no longer held.
func (h *Hold) Done() <-chan struct{} { return h.ended.Done() }

// Conn returns a connection whose calls carry the token, with the key [proxy.FencingTokenKey], and end with the hold, with
// codes.Unavailable.
func (h *Hold) Conn(conn grpc.ClientConnInterface) grpc.ClientConnInterface { return heldConn{conn, h} }

type heldConn struct {
	grpc.ClientConnInterface
	hold *Hold
}

// begin returns the context for a call: it carries the token, and ends when the hold does. The call is counted until end is called.
func (c heldConn) begin(ctx context.Context) (calling context.Context, end func()) {
	md, _ := metadata.FromOutgoingContext(ctx)
	md = metadata.Join(md) // a copy
	md.Set(proxy.FencingTokenKey, strconv.FormatInt(c.hold.Token, 10))
	calling, cancel := context.WithCancel(metadata.NewOutgoingContext(ctx, md))
	forget := context.AfterFunc(c.hold.ended, cancel)
	if c.hold.ended.Err() != nil {
		cancel() // immediately: AfterFunc starts a goroutine
	}
	c.hold.calls.Add(1)
	return calling, sync.OnceFunc(func() {
		forget()
		cancel()
		c.hold.calls.Add(-1)
	})
}

func (c heldConn) explain(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || c.hold.ended.Err() == nil {
		return err
	}
	return status.Errorf(codes.Unavailable, "the call was ended because its node does not hold the lock of %v any more", c.hold.lock)
}

// Invoke implements grpc.ClientConnInterface.
func (c heldConn) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	calling, end := c.begin(ctx)
	defer end()
	return c.explain(ctx, c.ClientConnInterface.Invoke(calling, method, request, reply, options...))
}

// NewStream implements grpc.ClientConnInterface.
func (c heldConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	calling, end := c.begin(ctx)
	// The registry reopens a stream on a successor. gRPC then reports an end, and nobody can say whether it is that of this stream.
	const opening, unclear, open = 0, 1, 2
	var state atomic.Int32
	finished := grpc.OnFinish(func(error) {
		if !state.CompareAndSwap(opening, unclear) && state.Load() == open {
			end()
		}
	})
	stream, err := c.ClientConnInterface.NewStream(calling, desc, method, append(slices.Clip(options), finished)...)
	if err != nil {
		end()
		return nil, c.explain(ctx, err)
	}
	if !state.CompareAndSwap(opening, open) {
		context.AfterFunc(stream.Context(), end)
	}
	return heldStream{stream, c, ctx}, nil
}

type heldStream struct {
	grpc.ClientStream
	conn   heldConn
	caller context.Context //nolint:containedctx // A stream has a context.
}

// Unwrap returns the registry's stream, for package proxy.
func (s heldStream) Unwrap() grpc.ClientStream { return s.ClientStream }

// RecvMsg implements grpc.ClientStream.
func (s heldStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if status.Code(err) == codes.Canceled {
		return s.conn.explain(s.caller, err)
	}
	return err
}
