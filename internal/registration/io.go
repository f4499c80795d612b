package registration

import (
	"context"
	"errors"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// errNotNow says that a read would have to wait.
var errNotNow = errors.New("nothing to read")

// past is a deadline that ends what is waiting.
var past = time.Unix(1, 0)

// acknowledge writes what is owed at the end of a call, as far as that does not wait.
func (c *conn) acknowledge() {
	if c.out.Len() == 0 {
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
		_, _ = c.net.Write(c.out.Bytes())
		c.out.Reset()
	}
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
