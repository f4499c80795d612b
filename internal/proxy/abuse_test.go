package proxy_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// serveHandler serves until the test ends, and returns a client.
func serveHandler(t *testing.T, s *proxy.Server, stop func()) testpb.TestServiceClient {
	t.Helper()
	listener, path := listen(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	t.Cleanup(func() {
		stop()
		s.Drain()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return testpb.NewTestServiceClient(connect(t, path))
}

// entries are the log entries of a server.
type entries chan string

func (e entries) Write(p []byte) (int, error) {
	e <- string(p)
	return len(p), nil
}

// TestAbuseOfCallbacks checks that whatever a handler or a director does, the call ends with a status that says so, and other calls work.
// A panic is logged with its place.
func TestAbuseOfCallbacks(t *testing.T) {
	blocks := func(ctx context.Context) { <-ctx.Done() }
	director := func(d proxy.Director) proxy.Handler { return d.Forward }
	returns := func(err error) proxy.Handler { return func(context.Context, grpc.ServerStream) error { return err } }
	directs := func(d func() grpc.ClientConnInterface) proxy.Handler {
		return director(func(context.Context, string) (grpc.ClientConnInterface, error) { return d(), nil })
	}
	for name, c := range map[string]struct {
		handle proxy.Handler
		code   codes.Code
		text   string
	}{
		"handler panics": {func(context.Context, grpc.ServerStream) error { panic("oops") }, codes.Internal, "panicked: oops"},
		"handler ends goroutine": {
			func(context.Context, grpc.ServerStream) error { runtime.Goexit(); return nil }, codes.Internal, "without a status",
		},
		"no handler":              {nil, codes.Internal, "panicked"},
		"no director":             {director(nil), codes.Internal, "panicked"},
		"context canceled":        {returns(context.Canceled), codes.Canceled, "canceled"},
		"context's deadline":      {returns(context.DeadlineExceeded), codes.DeadlineExceeded, "deadline"},
		"plain error":             {returns(errors.New("plain")), codes.Unknown, "plain"},
		"no connection":           {directs(func() grpc.ClientConnInterface { return nil }), codes.Internal, "has returned no connection"},
		"no connection of a name": {directs(func() grpc.ClientConnInterface { return proxy.Named(nil, "x") }), codes.Internal, "no connection"},
		"director panics":         {directs(func() grpc.ClientConnInterface { panic("oops") }), codes.Internal, "panicked: oops"},
		"director ends goroutine": {
			directs(func() grpc.ClientConnInterface { runtime.Goexit(); return nil }), codes.Internal, "without a status",
		},
		"handler blocks": {func(ctx context.Context, _ grpc.ServerStream) error { blocks(ctx); return ctx.Err() }, codes.DeadlineExceeded, ""},
		"director blocks": {director(func(ctx context.Context, _ string) (grpc.ClientConnInterface, error) {
			blocks(ctx)
			return nil, ctx.Err()
		}), codes.DeadlineExceeded, ""},
	} {
		t.Run(name, func(t *testing.T) {
			end, stop := context.WithCancel(t.Context())
			log := make(entries, 8)
			client := serveHandler(t, proxy.NewServer(end, func(ctx context.Context, caller grpc.ServerStream) error {
				if method, _ := grpc.MethodFromServerStream(caller); method == testpb.TestService_EmptyCall_FullMethodName {
					return status.Error(codes.DataLoss, "another call")
				}
				return c.handle(ctx, caller)
			}, proxy.ServerConfig{Log: slog.New(slog.NewTextHandler(log, nil))}), stop)
			ctx := within(t)
			if strings.Contains(name, "blocks") {
				short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
				ctx = short
			}
			for range 2 {
				_, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
				if status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.text) {
					t.Errorf("the call ended with %v", err)
				}
				if strings.Contains(c.text, "panicked") {
					if entry := <-log; !strings.Contains(entry, "/UnaryCall") || !strings.Contains(entry, ".go:") {
						t.Errorf("the log has %q", entry)
					}
				}
				if _, err := client.EmptyCall(within(t), &testpb.Empty{}); status.Code(err) != codes.DataLoss {
					t.Errorf("another call ended with %v", err)
				}
			}
		})
	}
}

// TestAbuseOfServer calls each method before, during and after serving, and twice.
func TestAbuseOfServer(t *testing.T) {
	refuse := func(context.Context, grpc.ServerStream) error { return status.Error(codes.DataLoss, "answered") }
	t.Run("drained before it serves", func(t *testing.T) {
		s := proxy.NewServer(t.Context(), refuse, proxy.ServerConfig{})
		s.Drain()
		s.Drain()
		for range 2 {
			listener, path := listen(t)
			if err := s.Serve(listener); err != nil {
				t.Errorf("Serve: %v", err)
			}
			if conn, err := net.Dial("unix", path); err == nil {
				t.Error("the listener was not closed")
				_ = conn.Close()
			}
		}
	})
	t.Run("two listeners, drained twice at the same time", func(t *testing.T) {
		s := proxy.NewServer(t.Context(), refuse, proxy.ServerConfig{})
		for range 2 {
			client := serveHandler(t, s, func() {})
			if _, err := client.EmptyCall(within(t), &testpb.Empty{}); status.Code(err) != codes.DataLoss {
				t.Errorf("a call ended with %v", err)
			}
		}
		drained := make(chan struct{})
		go func() { s.Drain(); drained <- struct{}{} }()
		s.Drain()
		<-drained
	})
	t.Run("context has ended", func(t *testing.T) {
		end, stop := context.WithCancelCause(t.Context())
		stop(status.Error(codes.Aborted, "it is over"))
		client := serveHandler(t, proxy.NewServer(end, proxy.Director(func(ctx context.Context, _ string) (grpc.ClientConnInterface, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}).Forward, proxy.ServerConfig{}), func() {})
		if _, err := client.EmptyCall(within(t), &testpb.Empty{}); status.Code(err) != codes.Aborted {
			t.Errorf("a call ended with %v", err)
		}
	})
	t.Run("handler drains its server", func(t *testing.T) {
		var s *proxy.Server
		drained := make(chan struct{})
		s = proxy.NewServer(t.Context(), func(context.Context, grpc.ServerStream) error {
			go func() { s.Drain(); close(drained) }()
			return status.Error(codes.DataLoss, "answered")
		}, proxy.ServerConfig{})
		client := serveHandler(t, s, func() {})
		if _, err := client.EmptyCall(within(t), &testpb.Empty{}); status.Code(err) != codes.DataLoss {
			t.Errorf("the call ended with %v", err)
		}
		<-drained
	})
}
