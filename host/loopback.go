package host

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// maxUnknown bounds the connections over loopback that have not shown a ticket. Everybody on the machine can make one, so the oldest goes
// for a newer one: a plugin shows its ticket at once.
const maxUnknown = 64

// loopbackListener accepts on 127.0.0.1.
type loopbackListener struct {
	net.Listener
}

func (l loopbackListener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: accepted, protocol: ProtocolCIPD}, nil
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
	s.done.Go(func() { _ = s.grpc.Serve(loopbackListener{l}) }) // ends with stop, and with nothing else that could be told
	return s.port, nil
}

// meet lets in a connection over loopback, for a moment if it shows no ticket.
func (s *server) meet(c *conn) {
	timer := time.AfterFunc(handshakeTimeout, func() { _ = c.Close() })
	c.count(func() {
		timer.Stop()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unknown = slices.DeleteFunc(s.unknown, func(u *conn) bool { return u == c })
	})
	s.mu.Lock()
	var oldest *conn
	if len(s.unknown) == maxUnknown {
		oldest = s.unknown[0]
		s.unknown = slices.Delete(s.unknown, 0, 1)
	}
	s.unknown = append(s.unknown, c)
	s.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close() // says nothing that matters
	}
}

// claim says whether a connection may be used with the ticket of a plugin. The first ticket that is shown over loopback makes the
// connection that plugin's.
func (c *conn) claim(p *PluginProcess) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.plugin == p:
		return nil
	case c.plugin != nil || c.unix != nil:
		return fmt.Errorf("the ticket is that of plugin %q", p.name)
	case c.isClosed:
		return errEnded
	}
	if err := p.calls.connect(c); err != nil {
		return err
	}
	c.closed()
	c.plugin, c.closed = p, func() { p.calls.disconnect(c) }
	return nil
}
