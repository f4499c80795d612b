package registration

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errNotNow says that a read would have to wait.
var errNotNow = errors.New("nothing to read")

// past is a deadline that ends what is waiting.
var past = time.Unix(1, 0)

// limit sets the deadline of a call. The first one may be that of the acknowledgements: see resume.
func (c *conn) limit(deadline time.Time) error {
	c.interrupted.Store(false)
	c.ends = deadline
	acks := time.Now().Add(c.delay)
	if c.early = deadline.IsZero() || acks.Before(deadline); c.early {
		deadline = acks
	}
	return c.net.SetDeadline(deadline)
}

// resume reports whether a call goes on after an error: it does if that was the deadline of the acknowledgements, which are written then.
func (c *conn) resume(err error) bool {
	if !c.early || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	c.early = false
	_ = c.net.SetDeadline(c.ends)
	if c.interrupted.Load() { // before the call's own deadline was set
		_ = c.net.SetDeadline(past)
	}
	c.flush()
	return true
}

// pause begins the time between two calls. The caller holds c.mu.
func (c *conn) pause() {
	if c.out.Len() == 0 {
		return
	}
	if c.rest == nil {
		c.rest = time.AfterFunc(c.delay, c.acknowledge)
	} else {
		c.rest.Reset(c.delay)
	}
}

// wake ends the time between two calls. The caller holds c.mu.
func (c *conn) wake() {
	if c.rest != nil {
		c.rest.Stop()
	}
}

// acknowledge writes the acknowledgements between two calls.
func (c *conn) acknowledge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil || c.out.Len() == 0 {
		return
	}
	raw, err := c.net.SyscallConn()
	if err != nil {
		return // it is closed
	}
	c.now = raw
	c.flush()
	c.now = nil
}

// settle reads what the peer has sent, writes what is owed to it, and waits for nothing. A nil error means that nothing is left on
// either side and that the connection may rest.
func (c *conn) settle(raw syscall.RawConn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake()
	switch {
	case c.failed != nil:
		return c.failed
	case !c.greeted:
		return status.Error(codes.FailedPrecondition, "no call has been made on the connection")
	}
	c.now = raw
	defer func() { c.now = nil }()
	c.budget = maxCall
	for {
		before := c.budget
		f, err := c.read()
		if errors.Is(err, errNotNow) && c.budget == before {
			break
		}
		if err == nil {
			err = c.control(f)
		}
		if err != nil {
			c.failed = callError(context.Background(), time.Time{}, err)
			return c.failed
		}
	}
	switch {
	case c.goAway != "":
		return status.Error(codes.Unavailable, c.goAway)
	case c.out.Len() > 0:
		return status.Error(codes.Unavailable, "the plugin does not read what is sent to it")
	default:
		return nil
	}
}

// flush writes what is to be written. An error is left to the next read: what the peer sent before it closed the connection still counts.
func (c *conn) flush() {
	switch {
	case c.out.Len() == 0:
	case c.now != nil:
		n, _ := writeNow(c.now, c.out.Bytes())
		c.out.Next(n)
	default:
		n, err := c.net.Write(c.out.Bytes())
		c.out.Next(n)
		if err != nil && !c.early {
			c.out.Reset()
		}
	}
	c.urgent = c.urgent && c.out.Len() > 0
}

// frameReader is what the framer of a conn reads from.
type frameReader struct{ *conn }

func (r *frameReader) Read(p []byte) (n int, err error) {
	// gofail: var registrationRead string
	// return 0, errors.New(registrationRead)
	if r.budget <= 0 {
		return 0, errTooMuch
	}
	p = p[:min(len(p), r.budget)]
	if r.in.Buffered() == 0 {
		if r.urgent || r.now != nil || !r.early || r.out.Len() > writeBuffer {
			r.flush()
		}
		if r.now != nil {
			n, err = readNow(r.now, p)
			r.budget -= n
			return n, err
		}
	}
	if n, err = r.in.Read(p); n == 0 && r.resume(err) {
		n, err = r.in.Read(p)
	}
	r.budget -= n
	return n, err
}
