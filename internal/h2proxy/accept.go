package h2proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// Introduced is a connection whose caller is known.
type Introduced struct {
	net.Conn
	// UID is the user for whom the budget counts the calls.
	UID uint32
	// Context is the parent of the contexts of all calls on the connection. It must not end.
	Context context.Context //nolint:containedctx // All calls share it.
}

// silentTime is how long Drain waits for connections on which the caller has not sent its settings.
const silentTime = time.Second

// accept serves a connection in a goroutine, after its caller has been introduced.
func (s *Server) accept(nc net.Conn) {
	if s.config.Introduce == nil {
		from := Introduced{nc, ^uint32(0), context.Background()}
		if known, ok := nc.(interface{ UID() uint32 }); ok {
			from.UID = known.UID()
		}
		// Not in the goroutine: when a connection is served, all connections that were accepted before it have been added.
		if c := s.newConn(from); c != nil {
			go s.serve(c)
		}
		return
	}
	if !s.add(nc) {
		_ = nc.Close()
		return
	}
	go func() {
		defer s.remove(nc)
		ctx, cancel := context.WithTimeout(context.Background(), s.config.Timeout)
		from, err := s.config.Introduce(ctx, nc)
		cancel()
		if err != nil {
			_ = nc.Close()
		} else if c := s.newConn(from); c != nil {
			s.remove(nc)
			s.serve(c)
		}
	}()
}

// newConn adds a connection and sends the settings. If the server is draining, it closes the connection and returns nil.
func (s *Server) newConn(from Introduced) *conn {
	c := newConn(from.Conn, s.config.Budget, from.UID, 4<<10)
	c.timeout = s.config.Timeout
	c.changed = c.closeUnused
	c.opened = func(f *http2.MetaHeadersFrame, st *stream) { s.opened(from.Context, f, st) }
	settings := []http2.Setting{{ID: http2.SettingMaxHeaderListSize, Val: MaxMetadata}}
	if s.config.Streams > 0 {
		settings = append(settings, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: s.config.Streams})
	}
	c.start(settings...) // before Drain can queue a GOAWAY: the settings come first
	if !s.add(c) {
		go c.fail(errClosed) // closing a TLS connection may block
		return nil
	}
	return c
}

// add adds a connection, a *conn or one whose caller is not known yet, unless the server is draining.
func (s *Server) add(nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	if s.conns == nil {
		s.conns = map[net.Conn]bool{}
	}
	s.conns[nc] = true
	return true
}

// remove removes a connection. Calling it again has no effect.
func (s *Server) remove(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.conns, nc); len(s.conns) == 0 {
		s.conns = nil
	}
	s.closeDone()
}

func (s *Server) serve(c *conn) {
	defer s.remove(c)
	sleep(c.budget.cancelPause(c.uid), c.ended)
	_ = c.SetReadDeadline(time.Now().Add(s.config.Timeout))
	var running sync.WaitGroup
	running.Go(c.write)
	if s.config.Silence > 0 {
		running.Go(func() { c.watch(s.config.Silence, s.config.Answer) })
	}
	if s.config.Age > 0 {
		aging := time.AfterFunc(s.config.Age, c.drain)
		defer aging.Stop()
	}
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c.reader, preface); err != nil || string(preface) != http2.ClientPreface {
		c.fail(errors.New("the caller does not speak HTTP/2"))
	} else {
		c.read()
	}
	running.Wait()
}

// endDrain closes a draining connection whose caller has not sent its settings. Other connections accept no more streams from now on, even
// if the caller has not acknowledged the GOAWAY.
func (c *conn) endDrain() {
	if !c.isEstablished() {
		c.fail(errClosed)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuseStreams()
}
