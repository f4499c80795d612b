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

// Fragment is some of the data of a call: any number of bytes, wherever in a message they are. They are good until the next RecvMsg on the
// stream from which they came.
type Fragment struct {
	data []byte
	last bool
}

// Len returns how many bytes are left to be sent.
func (f *Fragment) Len() int { return len(f.data) }

// CallOption asks for a stream of [Fragment]s, where a connection offers those.
type CallOption struct {
	grpc.EmptyCallOption
	// Budget bounds what waits in memory, for the user UID.
	Budget *Budget
	UID    uint32
}

// Requested returns the option among those of a call.
func Requested(options []grpc.CallOption) (CallOption, bool) {
	for _, o := range options {
		if o, ok := o.(CallOption); ok {
			return o, true
		}
	}
	return CallOption{}, false
}

// ClientConfig is what a [Client] works with.
type ClientConfig struct {
	// Dial connects. It is a function, as in grpc.WithContextDialer, because each kind of endpoint is reached and checked in its own way.
	Dial func(ctx context.Context) (net.Conn, error)
	// Timeout bounds the time until a connection can be used, Idle is after which time without calls it is closed, and Pause for how long
	// after a failure there is no further attempt.
	Timeout, Idle, Pause time.Duration
	// Silence is after which time without a frame the other end is asked whether it is there, and Answer how long it may take; zero for
	// never. The system tells when a process on the same machine ends.
	Silence, Answer time.Duration
	// Owner is the user to whom what the other end causes on the connections counts, by the budget of the call that needs one.
	Owner uint32
	// TLS says that the connections are encrypted.
	TLS bool
	// Pending counts the calls until their first answer; nil to count none.
	Pending *pendingcalls.Counter
	// Stats are told of each call: Begin and End.
	Stats []stats.Handler
	// Intercept intercepts all calls; nil for none.
	Intercept grpc.StreamClientInterceptor
}

// Client makes calls at one endpoint, on one connection, which it makes when it is needed. It is safe for concurrent use.
type Client struct {
	config  ClientConfig
	running sync.WaitGroup // the goroutines; added to with mu held, while it is not closed

	mu      sync.Mutex
	conn    *conn
	dialing chan struct{} // closed at the end of the attempt that is being made; nil if there is none
	failed  error         // the last attempt
	again   time.Time     // when the next may be made
	idle    *time.Timer
	closed  bool
	// conns are all connections, and whether they are leaving: they take no new calls.
	conns map[*conn]bool
}

// Closing begins what gRPC says, with codes.Canceled, of a call whose connection was closed; here it says the same.
const Closing = "grpc: the client connection is closing"

var errClosed = errors.New(Closing)

// NewClient returns a client, which connects to nothing yet. The caller closes it.
func NewClient(config ClientConfig) *Client { return &Client{config: config, conns: map[*conn]bool{}} }

// Close ends all calls and returns when nothing is left. It never fails.
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

// State says whether there is a connection, and whether the last attempt to make one has failed so recently that there is no other.
func (c *Client) State() (connected, failing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.conns) > 0, c.conn == nil && c.failed != nil && time.Now().Before(c.again)
}

// Connect makes the connection before the first call.
func (c *Client) Connect(ctx context.Context, budget *Budget) error {
	_, err := c.ready(ctx, budget)
	return err
}

// ready returns a connection that takes calls.
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

// connect makes a connection, and closes done when it can be used or has failed.
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
		over := conn.over()
		if !isClosed(conn.ended) { // or it may be forgotten already
			c.conns[conn] = false
		}
		if c.conn = conn; over {
			if crowded := c.leaves(conn); crowded != nil {
				c.running.Go(func() { crowded.fail(errCrowded) })
			}
			c.conn = nil
			c.failed = status.Error(codes.Unavailable, "connection error: the other end takes no calls")
			c.again = time.Now().Add(c.config.Pause)
		}
	}
}

// open connects and returns when the peer has said what it takes.
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
			c.running.Go(func() { c.leave(conn) })
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
		c.forget(conn)
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

// leave has new calls made on another connection.
func (c *Client) leave(conn *conn) {
	c.mu.Lock()
	if c.conn == conn {
		c.conn = nil
	}
	crowded := c.leaves(conn)
	c.mu.Unlock()
	if crowded != nil {
		crowded.fail(errCrowded)
	}
}

// leaves takes note that a connection takes no new calls, and returns one that is to end, if there are too many such; mu is held. Otherwise
// a plugin that ends no call, and goes away again and again, would have a connection for each.
func (c *Client) leaves(conn *conn) (crowded *conn) {
	if leaving, known := c.conns[conn]; leaving || !known {
		return nil
	}
	if conn.budget.leaving.Take(conn.uid, 1) != nil {
		delete(c.conns, conn)
		return conn
	}
	c.conns[conn] = true
	oldest, count := conn, 0
	for other, leaving := range c.conns {
		if leaving {
			count++
			if other.born.Before(oldest.born) {
				oldest = other
			}
		}
	}
	if count <= maxLeaving {
		return nil
	}
	c.drop(oldest) // so that it is not the oldest again before it has ended
	return oldest
}

// drop forgets a connection; mu is held.
func (c *Client) drop(conn *conn) {
	if c.conns[conn] {
		conn.budget.leaving.Release(conn.uid, 1)
	}
	delete(c.conns, conn)
}

// errCrowded ends a connection, and the calls on it.
var errCrowded = errors.New("the other end takes no more calls on this connection, as on too many others")

func (c *Client) forget(conn *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(conn)
}

// over says whether a connection takes no more calls.
func (c *conn) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil || c.goingAway
}

// used has the connection closed when it was not used for a time. It is called at the end of each call.
func (c *Client) used() {
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
	if conn := c.conn; conn != nil && !c.closed {
		conn.mu.Lock()
		unused := len(conn.streams) == 0
		conn.mu.Unlock()
		if unused {
			c.conn = nil
			c.running.Go(func() {
				conn.mu.Lock()
				defer conn.mu.Unlock()
				conn.goingAway = true
				conn.changed()
			})
		}
	}
}

var errAway = errors.New("the connection takes no more calls")

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

// tryOpen opens a stream unless that has to wait: for another one to end, with which full is closed, or for its turn.
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
	case !c.room():
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

// Invoke implements [grpc.ClientConnInterface]: it always fails, since a message is no fragment.
func (c *Client) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return status.Error(codes.Internal, "a connection of fragments makes no calls of messages")
}

// NewStream implements [grpc.ClientConnInterface]. The options must have a [CallOption]; of others the content subtype and OnFinish count.
// The messages of the stream are [Fragment]s.
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
	call := &clientCall{client: c, began: time.Now(), waits: c.config.Pending.Begin()}
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
			c.leave(conn)
		}
	}
	if err != nil {
		err = statusOfEnd(err)
		call.told(err)
		return nil, err
	}
	call.unwatch = context.AfterFunc(ctx, func() { call.finish(status.FromContextError(ctx.Err()).Err()) })
	return call, nil
}

// maxAttempts is on how many connections in turn a call may be tried that ended before it was sent.
const maxAttempts = 4

// maxLeaving is how many connections to one endpoint may take no more calls and have some to end.
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
