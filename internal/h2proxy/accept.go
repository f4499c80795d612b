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
	// UID is the user to whom its calls count.
	UID uint32
	// Context is that from which the contexts of its calls come; it does not end.
	Context context.Context //nolint:containedctx // All calls share it.
}

// silentTime is how long the end of a server waits for connections that say nothing: their callers have not begun to speak, or are gone.
const silentTime = time.Second

// take serves a connection, after its caller has been introduced.
func (s *Server) take(nc net.Conn) {
	if s.config.Introduce == nil {
		from := Introduced{nc, ^uint32(0), context.Background()}
		if known, ok := nc.(interface{ UID() uint32 }); ok {
			from.UID = known.UID()
		}
		// Before the next one is accepted, so that who is served knows that all are who came before.
		if c := s.begin(from); c != nil {
			go s.serve(c)
		}
		return
	}
	if !s.enter(nc) {
		_ = nc.Close()
		return
	}
	go func() {
		defer s.leave(nc)
		ctx, cancel := context.WithTimeout(context.Background(), s.config.Timeout)
		from, err := s.config.Introduce(ctx, nc)
		cancel()
		if err != nil {
			_ = nc.Close()
		} else if c := s.begin(from); c != nil {
			s.leave(nc)
			s.serve(c)
		}
	}()
}

// enter counts a connection whose caller is not known, unless the server is draining.
func (s *Server) enter(nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return false
	}
	s.left++
	if s.entering == nil {
		s.entering = map[net.Conn]bool{}
	}
	s.entering[nc] = true
	return true
}

// leave is called when the caller is known, or will not be.
func (s *Server) leave(nc net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entering[nc] {
		if delete(s.entering, nc); len(s.entering) == 0 {
			s.entering = nil
		}
		s.left--
		s.finish()
	}
}

// begin returns a connection that counts until it has been served. If the server is draining, it closes it and returns nil.
func (s *Server) begin(from Introduced) *conn {
	c := newConn(from.Conn, s.config.Budget, from.UID, 4<<10)
	c.timeout = s.config.Timeout
	c.changed = c.closeUnused
	c.opened = func(f *http2.MetaHeadersFrame, st *stream) { s.opened(from.Context, f, st) }
	settings := []http2.Setting{{ID: http2.SettingMaxHeaderListSize, Val: MaxMetadata}}
	if s.config.Streams > 0 {
		settings = append(settings, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: s.config.Streams})
	}
	c.start(settings...) // they come before all that may be said to it, even that it is to go
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		go c.fail(errClosed) // it may say goodbye, for which nobody has to wait
		return nil
	}
	s.left++
	if s.conns == nil {
		s.conns = map[*conn]bool{}
	}
	s.conns[c] = true
	return c
}

func (s *Server) serve(c *conn) {
	defer s.end(c)
	c.pause(c.budget.owed(c.uid))
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

// hush ends a connection that is being drained if its caller has not begun to speak, and otherwise has it take no more calls, also if its
// caller does not say that it knows.
func (c *conn) hush() {
	if !c.introduced() {
		c.fail(errClosed)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastCall()
}
