package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/client"
	pbproxy "github.com/patchbay-dev/patchbay/internal/proxy"
)

// through returns a connection of a program to a connection of the fleet, through a stable socket as daemons have it.
func through(t testing.TB, to grpc.ClientConnInterface) *grpc.ClientConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := pbproxy.NewServer(ctx, pbproxy.Director(func(context.Context, string) (grpc.ClientConnInterface, error) {
		return to, nil
	}).Forward, pbproxy.ServerConfig{})
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		cancel()
		server.Drain()
	})
	return conn
}

// echo is a plugin that says where it is.
type echo struct {
	fakePlugin
	grpc_testing.UnimplementedTestServiceServer
	node string
	// during is called in every unary call, with its fencing token.
	during func(ctx context.Context, token string)
}

func (e *echo) UnaryCall(ctx context.Context, r *grpc_testing.SimpleRequest) (*grpc_testing.SimpleResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if e.during != nil {
		e.during(ctx, strings.Join(md.Get(pbproxy.FencingTokenKey), "|"))
	}
	if want := r.GetResponseStatus(); want != nil {
		return nil, grpcstatus.Error(codes.Code(want.GetCode()), want.GetMessage())
	}
	_, hasDeadline := ctx.Deadline()
	_ = grpc.SetHeader(ctx, metadata.Pairs("echo", strings.Join(md.Get("say"), "|"), "deadline", strconv.FormatBool(hasDeadline),
		"token", strings.Join(md.Get(pbproxy.FencingTokenKey), "|"), "route", strings.Join(md.Get(pbproxy.TypeKey), "|")))
	return &grpc_testing.SimpleResponse{Payload: r.GetPayload(), Username: e.node}, nil
}

func (e *echo) FullDuplexCall(s grpc_testing.TestService_FullDuplexCallServer) error {
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = s.Send(&grpc_testing.StreamingOutputCallResponse{Payload: r.GetPayload()})
		}
		if err != nil {
			return err
		}
	}
}

// echo has the plugin Echo/one with a daemon until it is stopped.
func (d *daemon) echo(during func(ctx context.Context, token string)) (stop func()) {
	d.t.Helper()
	return d.echoAs("Echo", "one", "echo.sock", during)
}

func (d *daemon) echoAs(ptype, name, socket string, during func(ctx context.Context, token string)) (stop func()) {
	d.t.Helper()
	l, err := net.Listen("unix", filepath.Join(d.dir, "plugins", socket))
	if err != nil {
		d.t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	e := &echo{node: d.name, during: during, fakePlugin: fakePlugin{info: &registerapi.PluginInfo{
		Type: ptype, Name: name, SupportedVersions: []string{"1.0.0"},
	}}}
	registerapi.RegisterRegistrationServer(server, e)
	grpc_testing.RegisterTestServiceServer(server, e)
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(l) }()
	d.t.Cleanup(server.Stop)
	d.run("wait", ptype+"/"+name)
	return server.Stop
}

// caller returns a client of Echo/one in the fleet through a daemon; node may be empty.
func (d *daemon) caller(node string) grpc_testing.TestServiceClient {
	d.t.Helper()
	return d.callerOf("Echo", "one", node)
}

func (d *daemon) callerOf(ptype, name, node string) grpc_testing.TestServiceClient {
	d.t.Helper()
	c := client.New(filepath.Join(d.dir, "control.sock"))
	conn, err := c.FleetConn(ptype, name, node)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { conn.Close(); c.Close() })
	return grpc_testing.NewTestServiceClient(conn)
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// answers returns which node answers.
func answers(t testing.TB, c grpc_testing.TestServiceClient) (string, error) {
	r, err := c.UnaryCall(soon(t), &grpc_testing.SimpleRequest{})
	return r.GetUsername(), err
}

func answersFrom(t testing.TB, c grpc_testing.TestServiceClient, want string) {
	t.Helper()
	if got, err := answers(t, c); err != nil || got != want {
		t.Fatalf("%q answers, want %q: %v", got, want, err)
	}
}

// inFleet waits until so many nodes have Echo/one, as a daemon sees it.
func (d *daemon) inFleet(count int) {
	d.t.Helper()
	d.run("fleet", "wait", "Echo/one", "--count", fmt.Sprint(count))
}

// TestCall: a call goes to this node first, then to another one, to one by name, and to the same one; as transparently as on a local socket.
