package h2proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/pendingcalls"
)

// Fragment is a part of the data of a call: any number of bytes, from anywhere in one or several messages. It is valid until the next
// RecvMsg of the stream that returned it.
type Fragment struct {
	data []byte
	last bool
}

// Len returns the number of bytes that are not sent yet.
func (f *Fragment) Len() int { return len(f.data) }

// CallOption requests a stream of [Fragment]s from a connection that offers it.
type CallOption struct {
	grpc.EmptyCallOption
	// Budget bounds the call's data in memory, which it counts for the user UID.
	Budget *Budget
	UID    uint32
}

// Requested returns the CallOption among the options of a call.
func Requested(options []grpc.CallOption) (CallOption, bool) {
	for _, o := range options {
		if o, ok := o.(CallOption); ok {
			return o, true
		}
	}
	return CallOption{}, false
}

// ClientConfig configures a [Client].
type ClientConfig struct {
	// Dial connects. It is a function, as in grpc.WithContextDialer, because kinds of endpoints differ in how they are reached and checked.
	Dial func(ctx context.Context) (net.Conn, error)
	// Timeout bounds the time to establish a connection. Idle is the time without calls after which it is closed. Pause is the time after a
	// failed attempt during which calls fail with the same error, without another attempt.
	Timeout, Idle, Pause time.Duration
	// Silence is the time without a frame after which the peer is pinged; zero for never. If nothing arrives within Answer, the connection
	// is closed. A peer on the same machine needs no pings: the kernel closes the connections of a process that exits.
	Silence, Answer time.Duration
	// Owner is the user for whom queued frames and large headers count. The budget is that of the call for which the connection was made.
	Owner uint32
	// TLS sets the scheme of the calls to https. Dial does the encryption.
	TLS bool
	// Pending counts the calls without an answer; nil to count none.
	Pending *pendingcalls.Counter
	// Stats receive [stats.Begin] and [stats.End] of each call.
	Stats []stats.Handler
	// Intercept intercepts all calls; nil for none.
	Intercept grpc.StreamClientInterceptor
}

// Client makes calls to one endpoint. It connects when the first call needs it, and all calls share the connection. It is safe for
// concurrent use.
type Client struct {
	config  ClientConfig
	running sync.WaitGroup // all goroutines. Add needs mu and !closed, or another running goroutine

	mu      sync.Mutex
	conn    *conn
	dialing chan struct{} // closed at the end of the current attempt to connect; nil if there is none
	failed  error         // the error of the last attempt
	again   time.Time     // when another attempt may begin
	idle    *time.Timer
	closed  bool
	// conns are all connections. The value is true if a connection is leaving: it accepts no new calls and waits for its calls to end.
	conns map[*conn]bool
}

// Closing is the prefix of the error of calls whose connection was closed. It has codes.Canceled, as in grpc-go.
const Closing = "grpc: the client connection is closing"

var errClosed = errors.New(Closing)

// NewClient returns a client. It does not connect. The caller must call Close.
func NewClient(config ClientConfig) *Client { return &Client{config: config, conns: map[*conn]bool{}} }

// Close ends all calls and returns when all goroutines have ended. It always returns nil.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	conns := slices.Collect(maps.Keys(c.conns))
	if c.idle != nil {
		c.idle.Stop()
	}
	c.mu.Unlock()
	for _, conn := range conns {
		conn.fail(errClosed)
	}
	c.running.Wait()
	return nil
}

// State reports whether the client has a connection, and whether calls fail because the last attempt to connect failed recently.
func (c *Client) State() (connected, failing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.conns) > 0, c.conn == nil && c.failed != nil && time.Now().Before(c.again)
}

// Connect connects before the first call. It blocks until the connection is established or ctx is done.
func (c *Client) Connect(ctx context.Context, budget *Budget) error {
	_, err := c.ready(ctx, budget)
	return err
}

// ready returns a connection that accepts calls. It connects if necessary.
func (c *Client) ready(ctx context.Context, budget *Budget) (*conn, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, status.Error(codes.Canceled, errClosed.Error())
		}
		if c.conn != nil {
			defer c.mu.Unlock()
			return c.conn, nil
		}
		if c.dialing == nil {
			if c.failed != nil && time.Now().Before(c.again) {
				defer c.mu.Unlock()
				return nil, c.failed
			}
			c.failed = nil
			done := make(chan struct{})
			c.dialing = done
			c.running.Go(func() { c.connect(budget, done) })
		}
		dialing := c.dialing
		c.mu.Unlock()
		select {
		case <-dialing:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		c.mu.Lock()
		err := c.failed
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

// connect makes a connection, and closes done when it is established or the attempt has failed.
func (c *Client) connect(budget *Budget, done chan struct{}) {
	conn, err := c.open(budget)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(done)
	c.dialing = nil
	switch {
	case err != nil:
		c.failed = status.Errorf(codes.Unavailable, "connection error: %v", err)
		c.again = time.Now().Add(c.config.Pause)
	case c.closed:
		c.running.Go(func() { conn.fail(errClosed) })
	default:
		conn.mu.Lock()
		refuses := conn.err != nil || conn.goingAway
		conn.mu.Unlock()
		if !isClosed(conn.ended) { // otherwise its goroutine may have removed it already
			c.conns[conn] = false
		}
		if c.conn = conn; refuses {
			c.setLeaving(conn)
			c.failed = status.Error(codes.Unavailable, "connection error: the other end takes no calls")
			c.again = time.Now().Add(c.config.Pause)
		}
	}
}

// open connects, and returns when the settings of the peer have arrived.
func (c *Client) open(budget *Budget) (*conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), c.config.Timeout)
	defer cancel()
	nc, err := c.config.Dial(ctx)
	if err != nil {
		return nil, err
	}
	conn := newConn(nc, budget, c.config.Owner, 32<<10)
	conn.client, conn.acked, conn.timeout = true, true, c.config.Timeout
	left := false
	conn.changed = func() {
		if conn.slots != nil {
			close(conn.slots)
			conn.slots = nil
		}
		conn.closeUnused()
		if !left && (conn.goingAway || conn.err != nil) {
			left = true
			c.running.Go(func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.setLeaving(conn)
			})
		}
	}
	conn.mu.Lock()
	_, _ = conn.out.Write([]byte(http2.ClientPreface))
	conn.mu.Unlock()
	conn.start(http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	conn.mu.Lock()
	conn.owed = connWindow - protocolWindow
	conn.giveWindow()
	conn.mu.Unlock()
	c.running.Go(conn.write)
	c.running.Go(func() {
		conn.read()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.remove(conn)
	})
	select {
	case <-conn.settled:
		if c.config.Silence > 0 {
			c.running.Go(func() { conn.watch(c.config.Silence, c.config.Answer) })
		}
		return conn, nil
	case <-conn.ended:
		err = conn.err
	case <-ctx.Done():
		err = fmt.Errorf("the other end accepts the connection and does not speak HTTP/2 within %v", c.config.Timeout)
	}
	conn.fail(err)
	return nil, err
}

// setLeaving makes new calls use another connection, and marks conn as leaving; mu is held. If there are too many leaving connections, it
// closes one of them: otherwise an endpoint that never ends its calls and sends GOAWAY again and again could have any number.
func (c *Client) setLeaving(conn *conn) {
	if c.conn == conn {
		c.conn = nil
	}
	if leaving, ok := c.conns[conn]; leaving || !ok {
		return
	}
	surplus := conn
	if conn.budget.leaving.Take(conn.uid, 1) == nil {
		c.conns[conn] = true
		count := 0
		for other, leaving := range c.conns {
			if leaving {
				count++
				if other.born.Before(surplus.born) {
					surplus = other
				}
			}
		}
		if count <= maxLeaving {
			return
		}
	}
	c.remove(surplus) // before it has ended, so that it is not chosen again
	if !c.closed {
		c.running.Go(func() { surplus.fail(errCrowded) })
	}
}

// remove removes a connection; mu is held.
func (c *Client) remove(conn *conn) {
	if c.conns[conn] {
		conn.budget.leaving.Release(conn.uid, 1)
	}
	delete(c.conns, conn)
}

// errCrowded is the error of calls on a surplus connection.
var errCrowded = errors.New("the other end takes no more calls on this connection, as on too many others")

// restartIdle restarts the idle timer at the end of a call.
func (c *Client) restartIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed || c.conn == nil:
	case c.idle == nil:
		c.idle = time.AfterFunc(c.config.Idle, c.closeIdle)
	default:
		c.idle.Reset(c.config.Idle)
	}
}

func (c *Client) closeIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := c.conn
	if conn == nil || c.closed {
		return
	}
	conn.mu.Lock()
	defer conn.mu.Unlock()
	if len(conn.streams) == 0 {
		c.conn = nil
		conn.goingAway = true
		conn.changed()
	}
}

var errAway = errors.New("the connection takes no more calls")

// openStream opens a stream with these headers. It blocks while the peer allows no more streams or the connection has no room. The error is
// errAway if the connection accepts no more calls.
func (c *conn) openStream(ctx context.Context, budget *Budget, uid uint32, fields []hpack.HeaderField) (*stream, error) {
	c.mu.Lock()
	s := newStream(c, 0)
	c.mu.Unlock()
	s.uid, s.budget = uid, budget
	for {
		full, err := c.tryOpen(s, fields)
		switch {
		case err != nil:
			return nil, err
		case full != nil:
			select {
			case <-full:
				continue
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		case s.id != 0:
			return s, nil
		}
		if err := s.await(ctx); err != nil {
			s.close(http2.ErrCodeCancel)
			return nil, err
		}
	}
}

// tryOpen opens a stream if that is possible without waiting. Otherwise the stream is queued for room or, if full is not nil, the peer
// allows no more streams until full is closed.
func (c *conn) tryOpen(s *stream, fields []hpack.HeaderField) (full chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.passRoom()
	s.unqueue()
	switch size := sizeOf(fields); {
	case c.err != nil || c.goingAway || c.nextID >= 1<<31:
		c.goingAway = true
		return nil, errAway
	case uint64(size) > uint64(c.peerFields):
		return nil, status.Errorf(codes.ResourceExhausted, "the metadata of the call have %d bytes, and the other end takes %d",
			size, c.peerFields)
	case uint64(len(c.streams)) >= uint64(c.peerStreams):
		if c.slots == nil {
			c.slots = make(chan struct{})
		}
		return c.slots, nil
	case !c.makeRoom():
		s.queue()
		return nil, nil
	case size > freeMetadata && !c.borrow(s.budget, s.uid, size):
		return nil, errNoRoom
	}
	s.id, s.sendWindow = c.nextID, c.peerWindow
	c.nextID += 2
	c.streams[s.id] = s
	c.callers.put(s.id, account{s.budget, s.uid})
	c.writeFields(s.id, fields, false)
	return nil, nil
}

// Invoke implements [grpc.ClientConnInterface]. It always fails, because messages are not fragments.
func (c *Client) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return status.Error(codes.Internal, "a connection of fragments makes no calls of messages")
}

// NewStream implements [grpc.ClientConnInterface]. The messages of the stream are [Fragment]s. A [CallOption] is required. Other options
// are ignored, except for the content subtype and OnFinish.
func (c *Client) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if by := c.config.Intercept; by != nil {
		return by(ctx, desc, nil, method, c.newStream, options...)
	}
	return c.newStream(ctx, desc, nil, method, options...)
}

// newStream is a [grpc.Streamer].
func (c *Client) newStream(
	ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, method string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	call := &clientCall{client: c, began: time.Now(), pending: c.config.Pending.Begin()}
	kind := contentType
	var budget *Budget
	var uid uint32
	for _, o := range options {
		switch o := o.(type) {
		case CallOption:
			budget, uid = o.Budget, o.UID
		case grpc.ContentSubtypeCallOption:
			kind += "+" + o.ContentSubtype
		case grpc.OnFinishCallOption:
			call.onFinish = append(call.onFinish, o.OnFinish)
		}
	}
	for _, h := range c.config.Stats {
		ctx = h.TagRPC(ctx, &stats.RPCTagInfo{FullMethodName: method, FailFast: true})
		h.HandleRPC(ctx, &stats.Begin{Client: true, BeginTime: call.began, FailFast: true, IsClientStream: true, IsServerStream: true})
	}
	call.ctx = ctx
	fields := c.requestFields(ctx, method, kind)
	err := errAway
	for attempt := 0; errors.Is(err, errAway) && attempt < maxAttempts; attempt++ {
		var conn *conn
		if conn, err = c.ready(ctx, budget); err == nil {
			call.stream, err = conn.openStream(ctx, budget, uid, fields)
		}
		if errors.Is(err, errAway) {
			c.mu.Lock()
			c.setLeaving(conn)
			c.mu.Unlock()
		}
	}
	if err != nil {
		err = statusOfEnd(err)
		call.reportEnd(err)
		return nil, err
	}
	call.unwatch = context.AfterFunc(ctx, func() { call.finish(status.FromContextError(ctx.Err()).Err()) })
	return call, nil
}

// maxAttempts is the number of connections on which a call is tried, if each accepts no more calls.
const maxAttempts = 4

// maxLeaving is the maximum number of leaving connections to one endpoint.
const maxLeaving = 8

func (c *Client) requestFields(ctx context.Context, method, kind string) []hpack.HeaderField {
	scheme := "http"
	if c.config.TLS {
		scheme = "https"
	}
	fields := make([]hpack.HeaderField, 0, 16)
	fields = append(fields, hpack.HeaderField{Name: ":method", Value: "POST"}, hpack.HeaderField{Name: ":scheme", Value: scheme},
		hpack.HeaderField{Name: ":path", Value: method}, hpack.HeaderField{Name: ":authority", Value: "localhost"},
		hpack.HeaderField{Name: contentTypeKey, Value: kind}, hpack.HeaderField{Name: "user-agent", Value: "patchbay"},
		hpack.HeaderField{Name: "te", Value: "trailers"})
	if deadline, ok := ctx.Deadline(); ok {
		fields = append(fields, hpack.HeaderField{Name: timeoutKey, Value: EncodeTimeout(time.Until(deadline)), Sensitive: true})
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	return addMetadata(fields, md)
}
