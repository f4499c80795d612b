package proxy_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// TestOwnErrors are those that no plugin has made.
func TestOwnErrors(t *testing.T) {
	listener, path := listen(t)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	absent := direct(t, path)
	plain := connect(t, run(t, grpc.NewServer()))
	for name, test := range map[string]struct {
		director proxy.Director
		code     codes.Code
		text     string
	}{
		"plain": {
			func(context.Context, string) (grpc.ClientConnInterface, error) { return nil, errors.New("plain") }, codes.Unavailable, "plain",
		},
		"status": {
			func(_ context.Context, method string) (grpc.ClientConnInterface, error) {
				return nil, status.Error(codes.NotFound, method)
			},
			codes.NotFound, "/grpc.testing.TestService/UnaryCall",
		},
		"nobody there": {
			func(context.Context, string) (grpc.ClientConnInterface, error) {
				return proxy.Named(absent, "plugin T/n"), nil
			},
			codes.Unavailable, "cannot call plugin T/n: connection error",
		},
		"plain connection": {
			func(context.Context, string) (grpc.ClientConnInterface, error) {
				return proxy.Named(plain, "plugin T/n"), nil
			},
			codes.Internal, "cannot call plugin T/n: its connection does not take fragments of messages: return one of a dynamicplugins.Store",
		},
	} {
		c := testpb.NewTestServiceClient(connect(t, serve(t, test.director)))
		_, err := c.UnaryCall(within(t), &testpb.SimpleRequest{})
		if s := status.Convert(err); s.Code() != test.code || !strings.HasPrefix(s.Message(), test.text) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestForeignCallIsRefused forwards a call of a server that is not a [proxy.Server].
func TestForeignCallIsRefused(t *testing.T) {
	forward := proxy.Director(func(context.Context, string) (grpc.ClientConnInterface, error) {
		t.Error("the call is directed to a plugin")
		return nil, errors.New("no plugin")
	}).Forward
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, caller grpc.ServerStream) error { return forward(caller.Context(), caller) }))
	_, err := testpb.NewTestServiceClient(connect(t, run(t, server))).UnaryCall(within(t), &testpb.SimpleRequest{})
	want := "cannot forward /grpc.testing.TestService/UnaryCall: the call is not one of a proxy.Server"
	if s := status.Convert(err); s.Code() != codes.Internal || s.Message() != want {
		t.Errorf("the call ends with %v", err)
	}
}

// TestComesBack has a call go to a plugin whose endpoint is the proxy's own socket.
func TestComesBack(t *testing.T) {
	var itself grpc.ClientConnInterface
	var calls atomic.Int32
	path := serve(t, func(context.Context, string) (grpc.ClientConnInterface, error) {
		calls.Add(1)
		return proxy.Named(itself, "plugin T/n"), nil
	})
	itself = direct(t, path)
	_, err := testpb.NewTestServiceClient(connect(t, path)).UnaryCall(within(t), &testpb.SimpleRequest{})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "plugin T/n") || !strings.Contains(err.Error(), "leads back") {
		t.Errorf("the call ends with %v", err)
	}
	if n := calls.Load(); n != 9 { // the first, and as many more as there may be hops
		t.Errorf("it came %d times", n)
	}
}

// TestLost ends the connection to the plugin, at either end, under a call.
func TestLost(t *testing.T) {
	for name, end := range map[string]func(*grpc.Server, io.Closer){
		"plugin": func(s *grpc.Server, _ io.Closer) { s.Stop() },
		"host":   func(_ *grpc.Server, c io.Closer) { _ = c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			server := grpc.NewServer()
			testpb.RegisterTestServiceServer(server, &plugin{duplex: func(s testpb.TestService_FullDuplexCallServer) error {
				if err := s.SendHeader(nil); err != nil {
					return err
				}
				<-s.Context().Done()
				return nil
			}})
			conn := direct(t, run(t, server))
			c := testpb.NewTestServiceClient(connect(t, serve(t, func(context.Context, string) (grpc.ClientConnInterface, error) {
				return proxy.Named(conn, "plugin T/n"), nil
			})))
			s, err := c.FullDuplexCall(within(t))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Header(); err != nil {
				t.Fatal(err)
			}
			end(server, conn)
			_, err = s.Recv()
			if s := status.Convert(err); s.Code() != codes.Unavailable ||
				!strings.HasPrefix(s.Message(), "the call was lost with the connection to plugin T/n: ") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestHostServicesAreRefused: what only the host of a go-plugin plugin may call is not forwarded.
func TestHostServicesAreRefused(t *testing.T) {
	director := func(context.Context, string) (grpc.ClientConnInterface, error) {
		t.Error("the call is directed to a plugin")
		return nil, errors.New("no plugin")
	}
	conn, err := grpc.NewClient("unix:"+serve(t, director), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, method := range []string{"/plugin.GRPCController/Shutdown", "/plugin.GRPCBroker/StartStream", "/plugin.GRPCStdio/StreamStdio",
		"/pluginregistration.Registration/GetInfo", "/pluginregistration.Registration/NotifyRegistrationStatus", "/pluginregistration%2ERegistration/NotifyRegistrationStatus",
		"/pluginregistration.Registration%2FNotifyRegistrationStatus/", "/%70lugin.GRPCController/Shutdown"} {
		err := conn.Invoke(t.Context(), method, &testpb.Empty{}, &testpb.Empty{})
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "is not forwarded") {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// TestCannotCallOnce: who forwards an error does not say again what could not be called.
func TestCannotCallOnce(t *testing.T) {
	t.Parallel()
	err := status.Error(codes.Unavailable, "no node has it")
	for range 2 {
		err = proxy.CallError("plugin A/b", err)
	}
	if s := status.Convert(err); s.Code() != codes.Unavailable || s.Message() != "cannot call plugin A/b: no node has it" {
		t.Errorf("the error is %v", err)
	}
}

// TestCannotCallClosed: who calls over a connection that was closed in this moment has canceled nothing, and may call again.
func TestCannotCallClosed(t *testing.T) {
	t.Parallel()
	err := proxy.CallError("plugin A/b", status.Error(codes.Canceled, "grpc: the client connection is closing"))
	if want := "cannot call plugin A/b: grpc: the client connection is closing"; status.Code(err) != codes.Unavailable || status.Convert(err).Message() != want {
		t.Error(err)
	}
	if err := proxy.CallError("plugin A/b", status.Error(codes.Canceled, "no")); status.Code(err) != codes.Canceled {
		t.Error(err)
	}
}
