package goplugin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/yamux"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// bridge accepts connections for a plugin that serves only one multiplexed connection, which belongs to the library. It forwards their
// calls over a stream of that connection, without whole messages in memory.
type bridge struct {
	conns   chan net.Conn
	done    chan struct{}
	once    sync.Once
	plugin  *h2proxy.Client
	server  *proxy.Server
	end     context.CancelCauseFunc
	serving sync.WaitGroup
}

// bridged are the limits for data that is queued for the connections of a bridge, which never reach them. The data of forwarded calls is
// counted by the budgets of their callers.
var bridged = h2proxy.Limits{UserBytes: 16 << 20, Bytes: 22 << 20, UserCalls: math.MaxInt, Calls: math.MaxInt}

// errEnded is the error of calls that end because the plugin has ended.
var errEnded = errors.New("the plugin has ended")

// newBridge returns a bridge that is connected to its plugin. It connects immediately, because a server closes idle new connections soon.
func newBridge(ctx context.Context, m *multiplexed) (*bridge, error) {
	budget := h2proxy.NewBudget(bridged, 0, func(uint32, h2proxy.Reason, bool) {})
	b := &bridge{conns: make(chan net.Conn), done: make(chan struct{}), plugin: h2proxy.NewClient(h2proxy.ClientConfig{
		Dial: m.dial, Timeout: m.config.StartTimeout, Idle: math.MaxInt64, Pause: time.Second, TLS: m.config.TLSConfig != nil,
		Owner: math.MaxUint32,
	})}
	if err := b.plugin.Connect(ctx, budget); err != nil {
		return nil, errors.Join(err, b.plugin.Close())
	}
	to := proxy.Director(func(context.Context, string) (grpc.ClientConnInterface, error) { return b.plugin, nil })
	var end context.Context
	end, b.end = context.WithCancelCause(context.Background())
	b.server = proxy.NewServer(end, to.Forward, proxy.ServerConfig{Budget: budget})
	b.serving.Go(func() { _ = b.server.Serve(b) }) // returns after Close
	return b, nil
}

// multiplexed are the credentials of the library's connection to a plugin. They record the yamux session of that connection.
type multiplexed struct {
	config    *goplugin.ClientConfig
	session   atomic.Pointer[yamux.Session]
	authority atomic.Value
}

// used returns the credentials that the library would use. With AutoMTLS they are known only after the plugin's handshake.
func (m *multiplexed) used() credentials.TransportCredentials {
	if m.config.TLSConfig != nil {
		return credentials.NewTLS(m.config.TLSConfig)
	}
	return insecure.NewCredentials()
}

func (m *multiplexed) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if stream, ok := conn.(*yamux.Stream); ok {
		m.authority.Store(authority)
		m.session.Store(stream.Session())
	}
	return m.used().ClientHandshake(ctx, authority, conn)
}

func (m *multiplexed) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return m.used().ServerHandshake(conn)
}

func (m *multiplexed) Info() credentials.ProtocolInfo { return m.used().Info() }

// Clone implements [credentials.TransportCredentials]. It returns m, which has the session for all copies.
func (m *multiplexed) Clone() credentials.TransportCredentials { return m }

// OverrideServerName implements [credentials.TransportCredentials]. gRPC does not call it.
func (*multiplexed) OverrideServerName(string) error { return errors.ErrUnsupported }

// dial opens another stream. The plugin accepts it as a connection like the first, unless a brokered connection was just announced. So dial
// is called once, before the plugin can be used.
func (m *multiplexed) dial(ctx context.Context) (net.Conn, error) {
	session, authority := m.session.Load(), m.authority.Load()
	if session == nil {
		return nil, errors.New("the library has made no multiplexed connection")
	}
	stream, err := session.Open()
	if err != nil {
		return nil, err
	}
	conn, _, err := m.used().ClientHandshake(ctx, fmt.Sprint(authority), stream)
	if err != nil {
		return nil, errors.Join(err, stream.Close())
	}
	return conn, nil
}

func (b *bridge) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := h2proxy.Pipe()
	select {
	case b.conns <- theirs:
		return ours, nil
	case <-b.done:
		return nil, errors.Join(errEnded, ours.Close(), theirs.Close())
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), ours.Close(), theirs.Close())
	}
}

func (b *bridge) Accept() (net.Conn, error) {
	select {
	case conn := <-b.conns:
		return conn, nil
	case <-b.done:
		return nil, net.ErrClosed
	}
}

func (b *bridge) Close() error {
	b.once.Do(func() { close(b.done) })
	return nil
}

func (*bridge) Addr() net.Addr { return &net.UnixAddr{Name: "bridge", Net: "pipe"} }

func (b *bridge) close() {
	_ = b.Close()
	b.end(errEnded)      // first, so that callers receive this error
	_ = b.plugin.Close() // it never fails
	b.server.Drain()
	b.serving.Wait()
}
