package host

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// maxConns is the largest number of connections of a plugin and its descendants.
const maxConns = 16

// maxStrangers is the largest number of connections that are not bound to a plugin. Every user of the machine can connect, so a new
// connection replaces the oldest one. That does not disturb plugins: over loopback a plugin sends its ticket immediately, and on the socket
// the connections of plugins are bound by the handshake.
var maxStrangers = map[Protocol]int{ProtocolPatchbay: 16, ProtocolCIPD: 64}

// listener accepts the connections of the host's plugins of one protocol: on its socket, or over loopback.
type listener struct {
	net.Listener
	protocol Protocol
}

func (l listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	unix, _ := accepted.(*net.UnixConn)
	return &conn{Conn: accepted, unix: unix, protocol: l.protocol}, nil
}

type conn struct {
	net.Conn
	unix     *net.UnixConn // nil over loopback
	protocol Protocol
	peer     sock.Credentials // set by the handshake; zero over loopback

	mu       sync.Mutex     // guards the fields below; taken before server.mu and calls.mu
	plugin   *PluginProcess // set by the handshake, or over loopback by the first call; nil if the peer does not belong to a plugin
	isClosed bool
	uncount  func() // may be nil
}

// Close closes the connection. It is safe to call it again.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isClosed && c.uncount != nil {
		c.uncount()
	}
	c.isClosed = true
	return err
}

// count arranges that uncount is called when the connection is closed.
func (c *conn) count(uncount func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uncount = uncount
}

func (c *conn) owner() *PluginProcess {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plugin
}

// peerCredentials identifies the plugin at the other end of a connection by the peer's PID, instead of a TLS handshake.
type peerCredentials struct {
	credentials.TransportCredentials
	server *server
}

type peerInfo struct {
	credentials.CommonAuthInfo
	conn *conn
}

func (peerInfo) AuthType() string { return "unix peer" }

func (p peerCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*conn)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a connection of the host's listener", raw)
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

type calls struct {
	mu            sync.Mutex
	ended         bool
	everConnected bool
	conns         map[*conn]struct{}
	running       int
	idle          chan struct{} // created by finish, and closed when the last connection is closed
}

var (
	errTooManyConns = errors.New("the plugin has too many connections to its host")
	errEnded        = errors.New("the plugin has ended")
)

func (k *calls) connect(c *conn) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.ended:
		return errEnded
	case len(k.conns) == maxConns:
		return errTooManyConns
	case k.conns == nil:
		k.conns = map[*conn]struct{}{}
	}
	k.conns[c] = struct{}{}
	k.everConnected = true
	return nil
}

// hasConnected reports whether the plugin has ever connected.
func (k *calls) hasConnected() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.everConnected
}

func (k *calls) disconnect(c *conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, c)
	if k.idle != nil && len(k.conns) == 0 {
		close(k.idle)
		k.idle = nil
	}
}

// begin counts a call. It returns an error if the limit is reached. If it returns nil, the caller must call end.
func (k *calls) begin(limit int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.ended:
		return status.Error(codes.PermissionDenied, errEnded.Error())
	case k.running == limit:
		return status.Errorf(codes.ResourceExhausted, "the plugin has %d calls to its host open already", k.running)
	}
	k.running++
	return nil
}

func (k *calls) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running--
}

// finish refuses new connections and calls. When all processes of the plugin have exited, the kernel has closed their ends of the
// connections, and what they sent is still read. Connections still open after patience are held by a process outside the plugin; they are
// closed.
func (k *calls) finish(patience time.Duration) {
	k.mu.Lock()
	k.ended = true
	if len(k.conns) == 0 {
		k.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	k.idle = idle
	k.mu.Unlock()

	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-idle:
		return
	case <-timer.C:
	}
	k.mu.Lock()
	open := slices.Collect(maps.Keys(k.conns))
	k.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

// loopbackPort returns the port of 127.0.0.1 on which the host is served; the first call opens it.
func (s *server) loopbackPort() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.port != 0 {
		return s.port, nil
	}
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return 0, fmt.Errorf("listen on 127.0.0.1 for plugins of CIPD: %w", err)
	}
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0, errors.Join(fmt.Errorf("listening on 127.0.0.1 has the address %v", l.Addr()), l.Close())
	}
	s.port = at.Port
	s.done.Go(func() { _ = s.grpc.Serve(listener{l, ProtocolCIPD}) }) // until stop
	return s.port, nil
}

// trackStranger counts a connection that is not bound to a plugin. It is closed after handshakeTimeout unless a call with a ticket binds
// it.
func (s *server) trackStranger(c *conn) {
	timer := time.AfterFunc(handshakeTimeout, func() { _ = c.Close() })
	c.count(func() {
		timer.Stop()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.strangers[c.protocol] = slices.DeleteFunc(s.strangers[c.protocol], func(u *conn) bool { return u == c })
	})
	s.mu.Lock()
	var oldest *conn
	there := s.strangers[c.protocol]
	if len(there) == maxStrangers[c.protocol] {
		oldest = there[0]
		there = slices.Delete(there, 0, 1)
	}
	s.strangers[c.protocol] = append(there, c)
	s.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
	}
}

// bindToPlugin returns an error if a connection may not be used with the ticket of a plugin. Over loopback, the first ticket binds the
// connection to its plugin.
func (c *conn) bindToPlugin(p *PluginProcess) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.plugin == p:
		return nil
	case c.plugin != nil || c.unix != nil:
		return fmt.Errorf("the ticket is that of plugin %q", p.spec.Name)
	case c.isClosed:
		return errEnded
	}
	if err := p.calls.connect(c); err != nil {
		return err
	}
	c.uncount()
	c.plugin, c.uncount = p, func() { p.calls.disconnect(c) }
	return nil
}
