package fleet

import (
	"context"
	"slices"
	"strconv"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/proxy"
)

// Hold is a lock that the node holds.
type Hold struct {
	// Token is the fencing token. It is the revision at which etcd knew the node first as one that wants the lock, and grows whenever the
	// lock passes on, unless etcd is restored from a backup without raising its revision.
	Token int64

	lock  Lock
	key   string // in etcd, made at the revision that is the token
	lose  context.CancelFunc
	ended context.Context //nolint:containedctx // It is the life of the hold.
	calls atomic.Int64    // those in progress
}

// Done is closed when the lock is not held any more.
func (h *Hold) Done() <-chan struct{} { return h.ended.Done() }

// Conn returns a connection whose calls carry the token, with the key [proxy.FencingTokenKey], and end with the hold, with
// codes.Unavailable.
func (h *Hold) Conn(conn grpc.ClientConnInterface) grpc.ClientConnInterface { return heldConn{conn, h} }

type heldConn struct {
	grpc.ClientConnInterface
	hold *Hold
}

// with returns a context that ends with the hold too, and has the token.
func (c heldConn) with(ctx context.Context) context.Context {
	md, _ := metadata.FromOutgoingContext(ctx)
	if md = md.Copy(); md == nil {
		md = metadata.MD{}
	}
	md.Set(proxy.FencingTokenKey, strconv.FormatInt(c.hold.Token, 10))
	calling, cancel := context.WithCancel(ctx)
	forget := context.AfterFunc(c.hold.ended, cancel)
	context.AfterFunc(ctx, func() { forget() })
	return metadata.NewOutgoingContext(calling, md)
}

func (c heldConn) explain(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || c.hold.ended.Err() == nil {
		return err
	}
	return status.Errorf(codes.Unavailable, "the call was ended because its node does not hold the lock of %v any more", c.hold.lock)
}

// count counts a call until it has ended.
func (c heldConn) count(options []grpc.CallOption) []grpc.CallOption {
	c.hold.calls.Add(1)
	return append(slices.Clip(options), grpc.OnFinish(func(error) { c.hold.calls.Add(-1) }))
}

// Invoke implements grpc.ClientConnInterface.
func (c heldConn) Invoke(ctx context.Context, method string, request, reply any, options ...grpc.CallOption) error {
	return c.explain(ctx, c.ClientConnInterface.Invoke(c.with(ctx), method, request, reply, c.count(options)...))
}

// NewStream implements grpc.ClientConnInterface.
func (c heldConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	stream, err := c.ClientConnInterface.NewStream(c.with(ctx), desc, method, c.count(options)...)
	if err != nil {
		return nil, c.explain(ctx, err)
	}
	return heldStream{stream, c, ctx}, nil
}

type heldStream struct {
	grpc.ClientStream
	conn   heldConn
	caller context.Context //nolint:containedctx // A stream has a context.
}

// RecvMsg implements grpc.ClientStream.
func (s heldStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if status.Code(err) == codes.Canceled {
		return s.conn.explain(s.caller, err)
	}
	return err
}
