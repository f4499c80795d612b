package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

const (
	// maxConns bounds the connections of one plugin, its descendants included.
	maxConns = 16
	// maxStrangers bounds the connections of all processes that belong to no plugin. They are only there to be told so.
	maxStrangers = 16
)

// listener makes each connection that it accepts a conn.
type listener struct {
	net.Listener
}

func (l listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	unix, ok := accepted.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("accepted a %T on the host's socket", accepted), accepted.Close())
	}
	return &conn{Conn: unix, unix: unix, protocol: ProtocolPatchbay}, nil
}

// conn is a connection to the host.
type conn struct {
	net.Conn
	unix     *net.UnixConn // nil over loopback
	protocol Protocol
	peer     sock.Peer // set by the handshake; zero over loopback

	mu       sync.Mutex     // guards what follows; taken before the locks of those who count connections
	plugin   *PluginProcess // set by the handshake, or over loopback by the first call; nil if the peer belongs to none
	isClosed bool
	closed   func() // uncounts the connection, if it is counted
}

// Close closes the connection. It is safe to call it again.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isClosed && c.closed != nil {
		c.closed()
	}
	c.isClosed = true
	return err
}

// count has a connection that is counted uncounted when it is closed.
func (c *conn) count(uncount func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = uncount
}

// owner returns the plugin that the connection belongs to; nil if there is none.
func (c *conn) owner() *PluginProcess {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plugin
}

// peerCredentials finds out which plugin a connection belongs to, as far as the kernel tells, in place of a TLS handshake.
type peerCredentials struct {
	server *server
}

// peerInfo hands the connection to the calls on it.
type peerInfo struct {
	credentials.CommonAuthInfo
	conn *conn
}

func (peerInfo) AuthType() string { return "unix peer" }

func (p peerCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*conn)
	if !ok {
		return nil, nil, fmt.Errorf("%T is no connection of the host's listener", raw)
	}
	if err := p.server.identify(c); err != nil {
		return nil, nil, err
	}
	level := credentials.PrivacyAndIntegrity
	if c.unix == nil {
		level = credentials.NoSecurity
	}
	return c, peerInfo{credentials.CommonAuthInfo{SecurityLevel: level}, c}, nil
}

func (peerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.ErrUnsupported
}

func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix peer"}
}

func (p peerCredentials) Clone() credentials.TransportCredentials { return p }

func (peerCredentials) OverrideServerName(string) error { return nil }
