package h2proxy

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/pendingcalls"
)

// clientCall is a [grpc.ClientStream] of [Fragment]s.
type clientCall struct {
	client   *Client
	stream   *stream
	ctx      context.Context //nolint:containedctx // A grpc.ClientStream has one.
	began    time.Time
	onFinish []func(error)
	unwatch  func() bool
	finished sync.Once
	pending  pendingcalls.Call
	answered sync.Once // ends pending

	held    []byte // the buffer of the last received fragment
	checked bool   // the response headers were checked
}

// reportEnd reports the end of the call to the pending calls and the stats handlers.
func (c *clientCall) reportEnd(err error) {
	c.answered.Do(func() { c.pending.End(err) })
	for _, h := range c.client.config.Stats {
		h.HandleRPC(c.ctx, &stats.End{Client: true, BeginTime: c.began, EndTime: time.Now(), Error: err})
	}
}

// finish releases the call, which has failed with err, or ended without an error.
func (c *clientCall) finish(err error) {
	c.finished.Do(func() {
		c.stream.close(http2.ErrCodeCancel)
		c.reportEnd(err)
		for _, f := range c.onFinish {
			f(err)
		}
		c.client.restartIdle()
	})
}

func (c *clientCall) Context() context.Context { return c.ctx }

func (c *clientCall) Header() (metadata.MD, error) {
	s := c.stream
	for {
		s.c.mu.Lock()
		fields, ended, err := s.headers, s.recvEnded, s.err
		s.c.mu.Unlock()
		switch {
		case fields != nil:
			if err := NotGRPC(fields); err != nil {
				return nil, err // RecvMsg returns it too
			}
			return toMetadata(fields), nil
		case err != nil:
			return nil, statusOfEnd(err)
		case ended:
			return nil, nil //nolint:nilnil // grpc.ClientStream documents it for a response with only a status
		}
		select {
		case <-s.readable:
		case <-c.ctx.Done():
			return nil, status.FromContextError(c.ctx.Err()).Err()
		}
	}
}

func (c *clientCall) Trailer() metadata.MD {
	c.stream.c.mu.Lock()
	defer c.stream.c.mu.Unlock()
	return toMetadata(c.stream.trailers)
}

func (c *clientCall) CloseSend() error { return c.stream.send(c.ctx, nil, true) }

func (c *clientCall) SendMsg(m any) error {
	f, ok := m.(*Fragment)
	if !ok {
		return errNotFragment(m)
	}
	return c.stream.send(c.ctx, f.data, f.last)
}

// TrySendMsg sends a fragment if it can do so without blocking, and reports whether it did.
func (c *clientCall) TrySendMsg(f *Fragment) bool {
	c.stream.c.mu.Lock()
	fits := int64(len(f.data)) <= c.stream.sendWindow && int64(len(f.data)) <= c.stream.c.sendWindow && len(f.data) <= maxFrame
	c.stream.c.mu.Unlock()
	if !fits {
		return false
	}
	rest, err := c.stream.sendSome(f.data, f.last)
	f.data = rest
	return err == nil && rest == nil
}

func (c *clientCall) RecvMsg(m any) error {
	err := c.recv(m)
	switch {
	case errors.Is(err, io.EOF):
		c.unwatch()
		c.finish(nil)
	case err != nil:
		c.unwatch()
		c.finish(err)
	}
	return err
}

func (c *clientCall) recv(m any) error {
	f, ok := m.(*Fragment)
	if !ok {
		return errNotFragment(m)
	}
	var err error
	f.data, _, err = c.stream.next(c.ctx, c.held)
	f.last = false // trailers follow
	c.held = f.data
	if err == nil && c.checked {
		return nil
	}
	c.stream.c.mu.Lock()
	headers, trailers := c.stream.headers, c.stream.trailers
	c.stream.c.mu.Unlock()
	if headers == nil {
		headers = trailers // a response without data
	}
	c.checked = true
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		if ended := c.ctx.Err(); ended != nil {
			err = ended
		} else if deadline, has := c.ctx.Deadline(); has && !time.Now().Before(deadline) {
			err = context.DeadlineExceeded // the peer's timer was faster
		}
		return statusOfEnd(err)
	case NotGRPC(headers) != nil:
		return NotGRPC(headers)
	case err == nil:
		c.answered.Do(func() { c.pending.End(nil) })
		return nil
	}
	if failed := StatusOf(trailers); failed != nil {
		return failed
	}
	return err
}
