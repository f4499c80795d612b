package proxy_test

import (
	"context"
	"io"
	"net"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/test/bufconn"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// FuzzPeers has a caller and a plugin that send anything. The call of somebody else through the same proxy arrives all the same, and nothing
// waits for either of them once it is gone.
func FuzzPeers(f *testing.F) {
	const settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	f.Add([]byte(http2.ClientPreface+settings+"\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678"), []byte(settings))
	f.Add([]byte(http2.ClientPreface+settings+"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x82"), []byte(settings+"\x00\x00\x01\x01\x05\x00\x00\x00\x01\x88"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), []byte(settings+"\x00\x00\x05\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00"))
	f.Add([]byte{}, []byte(settings+"\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))

	good := grpc.NewServer()
	testpb.RegisterTestServiceServer(good, &plugin{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		return &testpb.SimpleResponse{}, nil
	}})
	goodConn := serveInMemory(f, good)

	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, fromCaller, fromPlugin []byte) {
		bad := directInMemory(t, func(context.Context) (net.Conn, error) {
			client, plugin := net.Pipe()
			go func() {
				defer plugin.Close()
				go func() { _, _ = io.Copy(io.Discard, plugin) }()
				_, _ = plugin.Write(fromPlugin)
			}()
			return client, nil
		})
		var director proxy.Director = func(_ context.Context, method string) (grpc.ClientConnInterface, error) {
			if method == testpb.TestService_UnaryCall_FullMethodName {
				return proxy.Named(goodConn, "good"), nil
			}
			return proxy.Named(bad, "bad"), nil
		}
		listener := bufconn.Listen(1 << 16)
		served := make(chan error, 1)
		end, stop := context.WithCancel(t.Context())
		server := proxy.NewServer(end, director.Forward, proxy.ServerConfig{})
		go func() { served <- server.Serve(listener) }()
		defer func() {
			stop()
			server.Drain()
			if err := <-served; err != nil {
				t.Error(err)
			}
		}()

		hostile, err := listener.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, hostile) }()
		_, _ = hostile.Write(fromCaller)
		caller, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		defer caller.Close()
		c := testpb.NewTestServiceClient(caller)
		// The plugin ends its connection when it has sent that, and with it the call.
		ctx := within(t)
		_, err = c.EmptyCall(ctx, &testpb.Empty{})
		if ctx.Err() != nil {
			t.Errorf("a call to the plugin that sends %q does not end: %v", fromPlugin, err)
		}
		if _, err := c.UnaryCall(ctx, &testpb.SimpleRequest{}); err != nil {
			t.Errorf("a call to another plugin: %v", err)
		}
		_ = hostile.Close()
	})
}

// serveInMemory returns the proxy's connection to a server in this process.
func serveInMemory(tb testing.TB, server *grpc.Server) grpc.ClientConnInterface {
	tb.Helper()
	listener := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	tb.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			tb.Error(err)
		}
	})
	return directInMemory(tb, listener.DialContext)
}

func directInMemory(tb testing.TB, dial func(context.Context) (net.Conn, error)) grpc.ClientConnInterface {
	tb.Helper()
	c := h2proxy.NewClient(h2proxy.ClientConfig{Dial: dial, Timeout: patience, Idle: patience, Pause: patience})
	tb.Cleanup(func() { _ = c.Close() })
	return c
}
