package registration

import (
	"context"
	"errors"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errNotNow means that a read would block.
var errNotNow = errors.New("nothing to read")

// past is a deadline that ends blocked reads and writes.
var past = time.Unix(1, 0)

// ackDelay is how long acknowledgements wait at the end of a call for another call. Each write wakes the plugin.
const ackDelay = time.Second

// acknowledgeLater writes pending acknowledgements after ackDelay, unless endDelay is called before.
func (c *conn) acknowledgeLater() {
	if c.out.Len() > 0 {
		c.interrupting.Add(1)
		c.delay = time.AfterFunc(ackDelay, c.acknowledge)
	}
}

// endDelay returns when acknowledge neither runs nor will.
func (c *conn) endDelay() {
	if c.delay != nil && c.delay.Stop() {
		c.interrupting.Done()
	}
	c.delay = nil
	c.interrupting.Wait()
}

// acknowledge writes pending acknowledgements, as far as that does not block.
func (c *conn) acknowledge() {
	defer c.interrupting.Done()
	if raw, err := c.net.SyscallConn(); err == nil {
		n, _ := writeNow(raw, c.out.Bytes())
		c.out.Next(n)
	}
}

// drain reads all frames that the peer has sent and writes pending acknowledgements, without blocking. If it returns nil, nothing is left
// to read or write.
func (c *conn) drain(raw syscall.RawConn) error {
	switch {
	case c.failed != nil:
		return c.failed
	case !c.greeted:
		return status.Error(codes.FailedPrecondition, "no call has been made on the connection")
	}
	c.endDelay()
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

// flush writes pending frames. It ignores errors, because the next read returns them after the frames that the peer sent before it closed
// the connection.
func (c *conn) flush() {
	switch {
	case c.out.Len() == 0:
	case c.now != nil:
		n, _ := writeNow(c.now, c.out.Bytes())
		c.out.Next(n)
	default:
		_, _ = c.net.Write(c.out.Bytes())
		c.out.Reset()
	}
}

// frameReader is the input of the framer of a conn.
type frameReader struct{ *conn }

func (r *frameReader) Read(p []byte) (n int, err error) {
	// gofail: var registrationRead string
	// return 0, errors.New(registrationRead)
	if r.budget <= 0 {
		return 0, errTooMuch
	}
	p = p[:min(len(p), r.budget)]
	if r.in.Buffered() == 0 {
		r.flush()
		if r.now != nil {
			n, err = readNow(r.now, p)
			r.budget -= n
			return n, err
		}
	}
	n, err = r.in.Read(p)
	r.budget -= n
	return n, err
}
