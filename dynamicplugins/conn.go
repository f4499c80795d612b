package dynamicplugins

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Dispense calls [Registry].DispensePlugin and returns the client as a T. It returns the errors of DispensePlugin, and [ErrWrongClient] if
// the client has another type.
func Dispense[T any](r interface {
	DispensePlugin(ptype, name string) (any, error)
}, ptype, name string) (T, error) {
	var none T
	client, err := r.DispensePlugin(ptype, name)
	if err != nil {
		return none, err
	}
	t, ok := client.(T)
	if !ok {
		return none, &failure{
			text:     fmt.Sprintf("the dispenser for type %s made a %T for plugin %s, not a %s", ptype, client, name, reflect.TypeFor[T]()),
			sentinel: ErrWrongClient,
		}
	}
	return t, nil
}

// Conn returns a connection to a plugin that all callers share. It belongs to the name and not to one instance: each call goes to the
// instance that is current when the call begins, and stays there. The connection to a superseded instance is closed when its last call has
// ended. A connection that is idle for a minute is closed, and opened again by the next call.
//
// Conn, and each call, waits until a restored instance is confirmed or registered, at most until ctx ends or no plugin has been confirmed
// for the timeout of [WithConfirmTimeout], and then returns [ErrNotConfirmed]. While the process of a plugin is being replaced, they wait
// for the new one, at most until ctx ends. For other plugins that are not registered or not reachable, they return an error immediately.
func (r *Store) Conn(ctx context.Context, ptype, name string) (grpc.ClientConnInterface, error) {
	conn, err := r.conn(ctx, ptype, name)
	if r.observer.Dispense != nil {
		r.observer.Dispense(ptype, err)
	}
	return conn, err
}

func (r *Store) conn(ctx context.Context, ptype, name string) (grpc.ClientConnInterface, error) {
	k, err := named(ptype, name, "connect to")
	if err != nil {
		return nil, err
	}
	if _, err := r.sharedInstance(ctx, k); err != nil {
		return nil, err
	}
	return &sharedConn{registry: r, key: k}, nil
}

// dispenseTimeout bounds how long DispensePlugin, whose callers have no context, waits for an instance, however many others are confirmed.
const dispenseTimeout = 30 * time.Second

func (r *Store) dispenseConn(k plugin.Name, dispenser ConnDispenser) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), max(dispenseTimeout, r.confirmTimeout))
	defer cancel()
	in, err := r.sharedInstance(ctx, k)
	if err != nil {
		return nil, err
	}
	return dispenser(in.info, &sharedConn{registry: r, key: k})
}

// sharedInstance returns the instance that shared connections to k use. It waits for a restored instance to be confirmed, and for the new
// process of a plugin that is being replaced.
func (r *Store) sharedInstance(ctx context.Context, k plugin.Name) (*instance, error) {
	for {
		if err := r.usable(); err != nil {
			return nil, err
		}
		v := r.view(k)
		switch {
		case r.replacement(k).isLeaving(v):
			if err := (storeKeeper{r}).AwaitReplaced(ctx, k.Type, k.Name); err != nil {
				return nil, err
			}
			continue
		case v == nil:
			return nil, r.missing(k)
		case v.shared != nil:
			return v.shared, nil
		case v.current == nil:
			return nil, v.instances[0].dead
		}
		if err := r.awaitConfirmed(ctx, k); err != nil {
			return nil, err
		}
	}
}

// awaitConfirmed waits until an instance of k is confirmed, or none is reachable. It returns nil, to be called again, if only others were
// confirmed before the timeout: the host is slow.
func (r *Store) awaitConfirmed(ctx context.Context, k plugin.Name) error {
	before := r.confirmed.Load()
	bounded, cancel := context.WithTimeout(ctx, r.confirmTimeout)
	defer cancel()
	err := r.await(bounded, k, func(v *view) bool { return !v.isDoubtful() })
	switch {
	case err == nil || bounded.Err() == nil:
		return err
	case ctx.Err() == nil && r.confirmed.Load() != before:
		return nil
	}
	return notConfirmed(k, ctx.Err())
}

// sharedConn is the connection that [Store.Conn] returns.
type sharedConn struct {
	registry *Store
	key      plugin.Name
}

// begin returns the connection for one call, and its link, whose end the caller calls.
func (c *sharedConn) begin(ctx context.Context, fragments bool) (grpc.ClientConnInterface, *link, error) {
	for {
		in, err := c.registry.sharedInstance(ctx, c.key)
		if err != nil {
			return nil, nil, err
		}
		conn, err := in.link.begin(fragments)
		if err != nil || conn != nil {
			return conn, in.link, err
		}
		// The instance was superseded after sharedInstance returned; there is a newer view.
	}
}

func (c *sharedConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	var sentTo peer.Peer
	opts = append(slices.Clip(opts), grpc.Peer(&sentTo))
	for {
		conn, l, err := c.begin(ctx, false)
		if err != nil {
			return err
		}
		call := l.pending.Begin()
		err = conn.Invoke(ctx, method, args, reply, opts...)
		call.End(err)
		err = replaced(ctx, c.key, err)
		l.end()
		if sentTo.Addr != nil || !c.retryElsewhere(l, err) {
			return err
		}
	}
}

// NewStream implements grpc.ClientConnInterface. The call ends as the documentation of grpc.ClientConn.NewStream defines.
func (c *sharedConn) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	_, fragments := h2proxy.Requested(opts)
	for {
		conn, l, err := c.begin(ctx, fragments)
		if err != nil {
			return nil, err
		}
		end := sync.OnceFunc(l.end)
		stream, err := conn.NewStream(ctx, desc, method, append(slices.Clip(opts), grpc.OnFinish(func(error) { end() }))...)
		if err == nil && fragments {
			return stream, nil // the proxy words its errors
		}
		if err == nil {
			return &sharedStream{stream, ctx, c.key}, nil
		}
		end()
		err = replaced(ctx, c.key, err)
		if !c.retryElsewhere(l, err) {
			return nil, err
		}
	}
}

type sharedStream struct {
	grpc.ClientStream
	caller context.Context //nolint:containedctx // the stream's own context ends with the connection
	key    plugin.Name
}

func (s *sharedStream) RecvMsg(m any) error {
	return replaced(s.caller, s.key, s.ClientStream.RecvMsg(m))
}

// replaced turns the error of a call whose connection was closed, which is codes.Canceled, into codes.Unavailable.
func replaced(ctx context.Context, k plugin.Name, err error) error {
	if status.Code(err) != codes.Canceled || ctx.Err() != nil || !strings.HasPrefix(status.Convert(err).Message(), h2proxy.Closing) {
		return err
	}
	return status.Errorf(codes.Unavailable, "the call was lost when the connection to plugin %s/%s was closed: the plugin was replaced "+
		"or the host is shutting down", k.Type, k.Name)
}

// retryElsewhere reports whether a call that failed before it was sent should be repeated on another instance, because its own instance
// stopped accepting calls.
func (c *sharedConn) retryElsewhere(l *link, err error) bool {
	if status.Code(err) != codes.Unavailable {
		return false
	}
	v := c.registry.view(c.key)
	return v.link() != l || c.registry.replacement(c.key).isLeaving(v)
}
