package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// patience bounds how long a test waits for what should happen at once.
const patience = 2 * time.Minute

// large is more than gRPC allows a message by default.
const large = 64 << 20

// plugin serves the functions that a test sets.
type plugin struct {
	testpb.UnimplementedTestServiceServer
	unary  func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error)
	output func(*testpb.StreamingOutputCallRequest, testpb.TestService_StreamingOutputCallServer) error
	input  func(testpb.TestService_StreamingInputCallServer) error
	duplex func(testpb.TestService_FullDuplexCallServer) error
}

func (p *plugin) UnaryCall(ctx context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return p.unary(ctx, r)
}

func (p *plugin) StreamingOutputCall(r *testpb.StreamingOutputCallRequest, s testpb.TestService_StreamingOutputCallServer) error {
	return p.output(r, s)
}

func (p *plugin) StreamingInputCall(s testpb.TestService_StreamingInputCallServer) error {
	return p.input(s)
}

func (p *plugin) FullDuplexCall(s testpb.TestService_FullDuplexCallServer) error { return p.duplex(s) }

// listen listens in a new directory with a short path.
func listen(t *testing.T) (net.Listener, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return listener, path
}

// run serves until the test ends, and returns the path.
func run(t *testing.T, server *grpc.Server) string {
	t.Helper()
	listener, path := listen(t)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Error(err)
		}
	})
	return path
}

func connect(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// through serves a plugin and returns a client of it through the proxy, and the plugin's server.
func through(t *testing.T, p *plugin) (testpb.TestServiceClient, *grpc.Server) {
	t.Helper()
	server := grpc.NewServer(grpc.MaxRecvMsgSize(proxy.MaxMessageSize))
	testpb.RegisterTestServiceServer(server, p)
	conn := direct(t, run(t, server))
	return testpb.NewTestServiceClient(connect(t, serve(t, func(context.Context, string) (grpc.ClientConnInterface, error) {
		return proxy.Named(conn, "plugin T/n"), nil
	}))), server
}

// direct connects to a plugin for the proxy.
func direct(t *testing.T, path string) *h2proxy.Client {
	t.Helper()
	c := h2proxy.NewClient(h2proxy.ClientConfig{
		Dial:    func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", path) },
		Timeout: patience, Idle: time.Minute, Pause: time.Millisecond,
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// serve serves the proxy until the test ends, and returns the path.
func serve(t *testing.T, director proxy.Director) string {
	t.Helper()
	if serveOtherwise != nil {
		return serveOtherwise(t, director)
	}
	end, stop := context.WithCancel(t.Context())
	server := proxy.NewServer(end, director.Forward, proxy.ServerConfig{})
	listener, path := listen(t)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		stop()
		server.Drain()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return path
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// wait returns what comes from c.
func wait[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited in vain: %s", what)
		panic("unreachable")
	}
}

func payload(size int) *testpb.Payload { return &testpb.Payload{Body: bytes.Repeat([]byte{7}, size)} }

func TestUnary(t *testing.T) {
	var got metadata.MD
	c, _ := through(t, &plugin{unary: func(ctx context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		got, _ = metadata.FromIncomingContext(ctx)
		if err := grpc.SetHeader(ctx, metadata.Pairs("h", "1", "h", "2", "h-bin", "\x00\xff")); err != nil {
			return nil, err
		}
		if err := grpc.SetTrailer(ctx, metadata.Pairs("t", "3", "t-bin", "\x01")); err != nil {
			return nil, err
		}
		return &testpb.SimpleResponse{Payload: r.GetPayload()}, nil
	}})
	ctx := metadata.AppendToOutgoingContext(within(t), append(proxy.Route("secret", "route"), "k", "a", "k", "b", "k-bin", "\xfe\x00")...)
	var header, trailer metadata.MD
	r, err := c.UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload(3)}, grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil || string(r.GetPayload().GetBody()) != "\x07\x07\x07" {
		t.Fatalf("got %v, %v", r, err)
	}
	for _, test := range []struct {
		md        metadata.MD
		key, want string
	}{
		{got, "k", "a|b"}, {got, "k-bin", "\xfe\x00"}, {got, proxy.TypeKey, ""}, {got, "content-type", "application/grpc"},
		{header, "h", "1|2"}, {header, "h-bin", "\x00\xff"}, {trailer, "t", "3"}, {trailer, "t-bin", "\x01"},
	} {
		if value := strings.Join(test.md.Get(test.key), "|"); value != test.want {
			t.Errorf("%s is %q, want %q", test.key, value, test.want)
		}
	}
}

func TestStatusDetails(t *testing.T) {
	detailed, err := status.New(codes.FailedPrecondition, "no ü\n").WithDetails(&errdetails.ErrorInfo{Reason: "r", Domain: "d"})
	if err != nil {
		t.Fatal(err)
	}
	for name, before := range map[string]func(testpb.TestService_FullDuplexCallServer) error{
		"at once":        func(testpb.TestService_FullDuplexCallServer) error { return nil },
		"after a header": func(s testpb.TestService_FullDuplexCallServer) error { return s.SendHeader(metadata.Pairs("a", "b")) },
		"after a message": func(s testpb.TestService_FullDuplexCallServer) error {
			return s.Send(&testpb.StreamingOutputCallResponse{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := through(t, &plugin{duplex: func(s testpb.TestService_FullDuplexCallServer) error {
				s.SetTrailer(metadata.Pairs("t", "1"))
				if err := before(s); err != nil {
					return err
				}
				return detailed.Err()
			}})
			s, err := c.FullDuplexCall(within(t))
			if err != nil {
				t.Fatal(err)
			}
			for err == nil {
				_, err = s.Recv()
			}
			if !proto.Equal(status.Convert(err).Proto(), detailed.Proto()) {
				t.Errorf("got %v", err)
			}
			if got := s.Trailer().Get("t"); len(got) != 1 {
				t.Errorf("trailer %v", s.Trailer())
			}
		})
	}
}

// TestDuplex has plugin and caller speak in turn, the plugin first, so that nothing may be held back.
func TestDuplex(t *testing.T) {
	c, _ := through(t, &plugin{duplex: func(s testpb.TestService_FullDuplexCallServer) error {
		if err := s.SendHeader(metadata.Pairs("early", "1")); err != nil {
			return err
		}
		for {
			_, err := s.Recv()
			if errors.Is(err, io.EOF) {
				s.SetTrailer(metadata.Pairs("late", "1"))
				return s.Send(&testpb.StreamingOutputCallResponse{Payload: payload(9)})
			}
			if err == nil {
				err = s.Send(&testpb.StreamingOutputCallResponse{Payload: payload(1)})
			}
			if err != nil {
				return err
			}
		}
	}})
	s, err := c.FullDuplexCall(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if header, err := s.Header(); err != nil || len(header.Get("early")) != 1 {
		t.Fatalf("header %v, %v", header, err)
	}
	for range 100 {
		if err := s.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Recv(); err != nil || len(r.GetPayload().GetBody()) != 9 {
		t.Errorf("after the half-close: %v, %v", r, err)
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) || len(s.Trailer().Get("late")) != 1 {
		t.Errorf("at the end: %v, trailer %v", err, s.Trailer())
	}
}

func TestDeadlineReachesPlugin(t *testing.T) {
	deadlines := make(chan time.Duration, 1)
	c, _ := through(t, &plugin{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		deadline, ok := ctx.Deadline()
		if !ok {
			return nil, errors.New("no deadline")
		}
		deadlines <- time.Until(deadline)
		return &testpb.SimpleResponse{}, nil
	}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if _, err := c.UnaryCall(ctx, &testpb.SimpleRequest{}); err != nil {
		t.Fatal(err)
	}
	if left := <-deadlines; left <= 0 || left > time.Hour {
		t.Errorf("the plugin has %v", left)
	}
}

func TestDeadlineEndsCall(t *testing.T) {
	begun, ended := make(chan struct{}, 100), make(chan struct{}, 100)
	c, _ := through(t, &plugin{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return nil, ctx.Err()
	}})
	// On a busy machine a call may be over before it has reached the plugin; then the next one has more time.
	for timeout := 50 * time.Millisecond; len(begun) == 0; timeout *= 2 {
		if timeout > patience {
			t.Fatal("no call reaches the plugin")
		}
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		if _, err := c.UnaryCall(ctx, &testpb.SimpleRequest{}); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		cancel()
	}
	wait(t, "the call at the plugin ends", ended)
}

func TestCancellationReachesPlugin(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan struct{})
	c, _ := through(t, &plugin{duplex: func(s testpb.TestService_FullDuplexCallServer) error {
		close(begun)
		<-s.Context().Done()
		close(ended)
		return s.Context().Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := c.FullDuplexCall(ctx); err != nil {
		t.Fatal(err)
	}
	wait(t, "the plugin has the call", begun)
	cancel()
	wait(t, "the call at the plugin ends", ended)
}

// TestPluginEndsEarly has the plugin answer while the caller still sends.
func TestPluginEndsEarly(t *testing.T) {
	c, _ := through(t, &plugin{input: func(s testpb.TestService_StreamingInputCallServer) error {
		if _, err := s.Recv(); err != nil {
			return err
		}
		return status.Error(codes.ResourceExhausted, "enough")
	}})
	s, err := c.StreamingInputCall(within(t))
	for err == nil {
		err = s.Send(&testpb.StreamingInputCallRequest{Payload: payload(1 << 20)})
	}
	if _, err := s.CloseAndRecv(); status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != "enough" {
		t.Errorf("got %v", err)
	}
}

func TestLargeMessage(t *testing.T) {
	c, _ := through(t, &plugin{unary: func(_ context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		return &testpb.SimpleResponse{Payload: r.GetPayload()}, nil
	}})
	request := &testpb.SimpleRequest{Payload: payload(large)}
	r, err := c.UnaryCall(within(t), request, grpc.MaxCallRecvMsgSize(proxy.MaxMessageSize))
	if err != nil || !bytes.Equal(r.GetPayload().GetBody(), request.GetPayload().GetBody()) {
		t.Errorf("%d bytes came back, %v", len(r.GetPayload().GetBody()), err)
	}
}

// TestSlowReader has a caller that reads nothing for a while: the plugin is held back, and what it has sent arrives.
func TestSlowReader(t *testing.T) {
	const messages, size = 160, 256 << 10
	message := &testpb.StreamingOutputCallResponse{Payload: payload(size)}
	var sent atomic.Int64
	c, _ := through(t, &plugin{output: func(_ *testpb.StreamingOutputCallRequest, s testpb.TestService_StreamingOutputCallServer) error {
		for range messages {
			if err := s.Send(message); err != nil {
				return err
			}
			sent.Add(1)
		}
		return nil
	}})
	s, err := c.StreamingOutputCall(within(t), &testpb.StreamingOutputCallRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	// A plugin that is not held back goes on within this time.
	for before := int64(-1); before != sent.Load(); time.Sleep(100 * time.Millisecond) {
		before = sent.Load()
	}
	if got := sent.Load(); got > messages/2 {
		t.Errorf("the plugin sent %d KiB to a caller that does not read", got*size>>10)
	}
	received := 1
	for ; err == nil; received++ {
		_, err = s.Recv()
	}
	if !errors.Is(err, io.EOF) || received-1 != messages {
		t.Errorf("%d messages arrived, then %v", received-1, err)
	}
}

func TestMetadataIsBounded(t *testing.T) {
	bomb := metadata.Pairs("bomb", strings.Repeat("x", h2proxy.MaxMetadata))
	called := false
	c, _ := through(t, &plugin{
		unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			called = true
			return &testpb.SimpleResponse{}, nil
		},
		output: func(_ *testpb.StreamingOutputCallRequest, s testpb.TestService_StreamingOutputCallServer) error {
			return s.SendHeader(bomb)
		},
		duplex: func(s testpb.TestService_FullDuplexCallServer) error {
			s.SetTrailer(bomb)
			return nil
		},
	})
	if _, err := c.UnaryCall(metadata.NewOutgoingContext(within(t), bomb), &testpb.SimpleRequest{}); err == nil || called {
		t.Errorf("from the caller: %v, the plugin was called: %t", err, called)
	}
	out, err := c.StreamingOutputCall(within(t), &testpb.StreamingOutputCallRequest{})
	if err == nil {
		_, err = out.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "plugin T/n answered with") {
		t.Errorf("from the plugin, header: %v", err)
	}
	duplex, err := c.FullDuplexCall(within(t))
	if err == nil {
		_, err = duplex.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "plugin T/n answered with") {
		t.Errorf("from the plugin, trailer: %v", err)
	}
}

func TestContentSubtype(t *testing.T) {
	kinds := make(chan []string, 1)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		md, _ := metadata.FromIncomingContext(s.Context())
		kinds <- md.Get("content-type")
		return nil
	}))
	plugin := direct(t, run(t, server))
	conn := connect(t, serve(t, func(context.Context, string) (grpc.ClientConnInterface, error) { return plugin, nil }))
	for _, option := range []grpc.CallOption{grpc.CallContentSubtype("proto"), grpc.EmptyCallOption{}} {
		s, err := conn.NewStream(within(t), &grpc.StreamDesc{ServerStreams: true}, "/a.B/C", option)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.RecvMsg(&testpb.Empty{}); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		want := "application/grpc"
		if _, ok := option.(grpc.ContentSubtypeCallOption); ok {
			want += "+proto"
		}
		if got := strings.Join(<-kinds, " "); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestMain(m *testing.M) { leaktest.Main(m) }
