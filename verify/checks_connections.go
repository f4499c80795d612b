package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

const (
	manyConns   = 64 // connections at once
	silentConns = 16 // connections that say nothing
)

// connectRaw returns a connection to the registration socket for bytes that are not gRPC.
func (s *subject) connectRaw(ctx context.Context) *net.UnixConn {
	conn, err := sock.Dial(ctx, s.path)
	require(err == nil, "cannot connect: %v", err)
	return conn
}

// others checks that a new connection is served while others are in use.
func (s *subject) others(ctx context.Context, meanwhile string) outcome {
	_, err := s.getInfo(ctx)
	require(err == nil, "while %s, %s of another connection %s", meanwhile, path.Base(s.question()), brief(err))
	return pass("while %s, another connection is served", meanwhile)
}

func checkCrowd(ctx context.Context, s *subject) outcome {
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, s.options.CallTimeout)
	defer cancel()
	defer s.recover(whole) // when all are closed
	answers := make(chan error, manyConns)
	for range manyConns {
		conn, err := dial(s.path, s.options.CallTimeout, nil)
		requireValid(err)
		defer conn.Close() // when all were asked
		go func() {
			_, err := s.queryOn(ctx, conn)
			answers <- err
		}()
	}
	var failed int
	var first error
	for range manyConns {
		if err := <-answers; err != nil {
			failed++
			first = errors.Join(first, err)
		}
	}
	if failed > 0 {
		s.trace.add(fmt.Sprintf("%s on %d connections at once", path.Base(s.question()), manyConns), clip(first.Error()))
		return fail("%d of %d connections at once got no answer", failed, manyConns)
	}
	return pass("%d connections at once got an answer", manyConns)
}

// checkSilence tries twice, since the plugin may not have noticed yet that the connections of an earlier rule are closed.
func checkSilence(ctx context.Context, s *subject) outcome {
	o := outcomeOf(func() outcome { return s.amongSilent(ctx) })
	if o.status == Failed {
		s.recover(ctx)
		o = s.amongSilent(ctx)
	}
	return o
}

func (s *subject) amongSilent(ctx context.Context) outcome {
	for range silentConns {
		defer s.connectRaw(ctx).Close()
	}
	s.trace.add(fmt.Sprintf("%d connections without a byte", silentConns), "")
	return s.others(ctx, fmt.Sprintf("%d connections say nothing", silentConns))
}

func checkSlowReader(ctx context.Context, s *subject) outcome {
	conn := s.connectRaw(ctx)
	defer conn.Close()
	request, err := unreadRequests(s.question(), silentConns)
	requireValid(err)
	err = conn.SetDeadline(time.Now().Add(s.options.CallTimeout))
	if err == nil {
		_, err = conn.Write(request)
	}
	require(err == nil, "a connection ended while it sent its requests: %v", err)
	_, err = conn.Read(make([]byte, 1)) // the plugin has begun to answer when its SETTINGS frame arrives
	require(err == nil, "a connection whose flow-control window is closed gets no settings: %s", text(err))
	s.trace.add(fmt.Sprintf("%d times %s on a connection whose window is closed", silentConns, path.Base(s.question())), "")
	return s.others(ctx, "a peer with unanswered requests reads nothing")
}

// unreadRequests returns the frames of a client that calls a method n times with a flow-control window of zero.
func unreadRequests(method string, n uint32) ([]byte, error) {
	var out, headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	encoder.SetMaxDynamicTableSize(0) // so that the same block is right for each request
	var errs []error
	for _, field := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"},
		{Name: ":path", Value: method}, {Name: ":authority", Value: "localhost"},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	} {
		errs = append(errs, encoder.WriteField(field))
	}
	out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&out, nil)
	errs = append(errs, framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	for i := range n {
		stream := 2*i + 1
		errs = append(errs,
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: headers.Bytes(), EndHeaders: true}),
			framer.WriteData(stream, true, make([]byte, 5)), // an empty message with its prefix
		)
	}
	return out.Bytes(), errors.Join(errs...)
}

func checkGarbage(ctx context.Context, s *subject) outcome {
	for _, garbage := range []string{
		"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "\x00\xff\x00\xff\n", http2.ClientPreface + "\xff\xff\xff\x00\x00\x00\x00\x00\x00",
	} {
		conn := s.connectRaw(ctx)
		s.speak(conn, garbage)
		// Wait until the plugin closes the connection, which means that it has read the bytes. CloseWrite ends the input of a plugin that
		// waits for more.
		_ = conn.CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}
	return s.others(ctx, "other clients send bytes that are not gRPC")
}

// speak sends text and waits until the plugin answers or closes the connection, for a second at most.
func (s *subject) speak(conn net.Conn, text string) {
	s.trace.add(untrusted.Quote(text), "")
	if conn.SetDeadline(time.Now().Add(min(s.options.CallTimeout, time.Second))) == nil {
		_, _ = conn.Write([]byte(text))
		_, _ = conn.Read(make([]byte, 1))
	}
}
