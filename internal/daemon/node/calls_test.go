package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/limits"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/fleet/nodecall"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// connCount is a listener that counts its connections.
type connCount struct {
	net.Listener
	accepted atomic.Int32
}

func (l *connCount) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.accepted.Add(1)
	}
	return conn, err
}

// fakePlugin answers unary calls with the name of its node, echoes messages, and reads nothing from other calls.
type fakePlugin struct {
	testpb.UnimplementedTestServiceServer
}

func (fakePlugin) UnaryCall(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return &testpb.SimpleResponse{Username: "b"}, nil
}

func (fakePlugin) FullDuplexCall(s testpb.TestService_FullDuplexCallServer) error {
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = s.Send(&testpb.StreamingOutputCallResponse{Payload: r.GetPayload()})
		}
		if err != nil {
			return err
		}
	}
}

func (fakePlugin) StreamingInputCall(s testpb.TestService_StreamingInputCallServer) error {
	<-s.Context().Done()
	return s.Context().Err()
}

var discard = slog.New(slog.DiscardHandler)

type uncounted struct{}

func (uncounted) Ended(string, error) {}

// nodes are two nodes: one that takes calls for its plugin T/n, and one that calls it.
type nodes struct {
	t        *testing.T
	tmp      string
	listener *connCount
	dialer   *nodecall.Dialer // of the one that calls
	asCaller *tls.Config      // of a connection of that one
	stop     func() error     // ends the other one
	log      *bytes.Buffer    // of that one; to be read after stop
}

func newNodes(t *testing.T, change func(*callServer)) *nodes {
	t.Helper()
	n := &nodes{t: t, log: new(bytes.Buffer)}
	var err error
	if n.tmp, err = os.MkdirTemp("", "pb"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(n.tmp) })
	registry, err := dynamicplugins.Open(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(registry.Shutdown)
	path, served := filepath.Join(n.tmp, "plugin"), grpc.NewServer()
	testpb.RegisterTestServiceServer(served, fakePlugin{})
	at, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = served.Serve(at) }()
	t.Cleanup(served.Stop)
	if err := registry.RegisterPlugin(&dynamicplugins.PluginInfo{
		Type: "T", Name: "n", AllocID: "b", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: path},
	}); err != nil {
		t.Fatal(err)
	}
	certificates, asCaller := nodeCredentials(t, "a", "b")
	n.asCaller = asCaller
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.listener = &connCount{Listener: listener}
	all := []string{"*"}
	publish := func(plugin.Event) {}
	calls := &callServer{Node: &Node{
		Registry: registry, Served: uncounted{}, Log: slog.New(slog.NewTextHandler(n.log, &slog.HandlerOptions{Level: slog.LevelWarn})),
		credentials: certificates[1], rules: access.NewRules([]config.FleetAllow{allow("a", all, all, all)}),
		drain: newDrain(func() bool { return false }), settings: newSettings("b", config.Fleet{}),
	},
		audit: access.NewAuditor(publish, discard), age: maxConnAge,
		budget: limits.NewBudget("calls", h2proxy.DefaultLimits, 0, nil, discard),
	}
	if change != nil {
		change(calls)
	}
	n.stop = sync.OnceValue(calls.serve(t.Context(), n.listener, func() { t.Error("the server failed") }))
	n.dialer = &nodecall.Dialer{Credentials: certificates[0], Find: func(context.Context, fleet.Filter) ([]fleet.Instance, error) {
		return []fleet.Instance{{Node: &fleet.Node{NodeRecord: &fleetv1.NodeRecord{Address: listener.Addr().String()}, Name: "b"}}}, nil
	}}
	t.Cleanup(func() {
		n.dialer.Close()
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	})
	return n
}

func (n *nodes) ctx() context.Context {
	ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Minute)
	n.t.Cleanup(cancel)
	return ctx
}

func (n *nodes) ask(c testpb.TestServiceClient) string {
	answer, err := c.UnaryCall(n.ctx(), &testpb.SimpleRequest{})
	if err != nil {
		return err.Error()
	}
	return answer.GetUsername()
}

// clients returns clients of T/n whose calls go through the calling node, each over its own connection.
func (n *nodes) clients() map[string]func() testpb.TestServiceClient {
	n.t.Helper()
	to := n.dialer.Dial("T", "n", nodecall.Policy{})
	local := proxy.NewServer(n.t.Context(), proxy.Director(func(context.Context, string) (grpc.ClientConnInterface, error) {
		return to, nil
	}).Forward, proxy.ServerConfig{})
	path := filepath.Join(n.tmp, "a")
	listener, err := net.Listen("unix", path)
	if err != nil {
		n.t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	control := server.Start("the control API", listener, &http.Server{Handler: local, Protocols: protocols}, func() {}, discard)
	n.t.Cleanup(func() { _ = control.Stop() })
	return map[string]func() testpb.TestServiceClient{
		"fragments": func() testpb.TestServiceClient {
			conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return sock.Dial(ctx, path) }))
			if err != nil {
				n.t.Fatal(err)
			}
			n.t.Cleanup(func() { _ = conn.Close() })
			return testpb.NewTestServiceClient(conn)
		},
	}
}

// TestStreamsOfANode checks that the streams of one connection are within the bound of one node, for any limit of open files.
func TestStreamsOfANode(t *testing.T) {
	for files := 64; files <= 1<<20; files *= 2 {
		if limits.NodeCalls(files).UserCalls < maxStreams {
			t.Errorf("with %d files a node may have fewer calls than streams", files)
		}
	}
}

// TestUnreadCallHoldsNoOther checks that a call whose plugin does not read does not delay another call from the same node.
func TestUnreadCallHoldsNoOther(t *testing.T) {
	n := newNodes(t, nil)
	for kind, connect := range n.clients() {
		client := connect()
		unread, err := connect().StreamingInputCall(n.ctx())
		if err != nil {
			t.Fatal(err)
		}
		go func() { // until it is stuck
			for err := error(nil); err == nil; {
				err = unread.Send(&testpb.StreamingInputCallRequest{Payload: &testpb.Payload{Body: make([]byte, 8<<10)}})
			}
		}()
		// An echo of as many bytes as the windows of a connection only gets through if the windows are released.
		echo, err := client.FullDuplexCall(n.ctx())
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			err := echo.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: make([]byte, 8<<10)}})
			if err == nil {
				_, err = echo.Recv()
			}
			if err != nil {
				t.Fatalf("%s: another call: %v", kind, err)
			}
		}
		if err := echo.CloseSend(); err != nil {
			t.Error(err)
		}
		if got := n.ask(client); got != "b" {
			t.Errorf("%s: a new call: %s", kind, got)
		}
	}
}

// TestCallsOverAge checks that no call fails, and calls in progress continue, when a connection is too old for new calls.
func TestCallsOverAge(t *testing.T) {
	const connections = 20
	n := newNodes(t, func(s *callServer) { s.age = 200 * time.Millisecond })
	var calling sync.WaitGroup
	for kind, connect := range n.clients() {
		client := connect()
		long, err := client.FullDuplexCall(n.ctx())
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			calling.Go(func() {
				for n.listener.accepted.Load() < connections && !t.Failed() {
					if got := n.ask(client); got != "b" {
						t.Errorf("%s: %s", kind, got)
					}
				}
			})
		}
		calling.Go(func() {
			for n.listener.accepted.Load() < connections && !t.Failed() {
				err := long.Send(&testpb.StreamingOutputCallRequest{})
				if err == nil {
					_, err = long.Recv()
				}
				if err != nil {
					t.Errorf("%s: a call in progress: %v", kind, err)
				}
			}
			_ = long.CloseSend()
			if _, err := long.Recv(); err != io.EOF { //nolint:errorlint // it is that
				t.Errorf("%s: the end of the call in progress: %v", kind, err)
			}
		})
	}
	calling.Wait()
}

// TestSilentConnectionsEnd checks that the server does not wait for connections whose caller has not presented its certificate, or has sent
// nothing after it, and that the log does not mention calls.
func TestSilentConnectionsEnd(t *testing.T) {
	n := newNodes(t, nil)
	silent, err := net.Dial("tcp", n.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	shown, err := tls.Dial("tcp", n.listener.Addr().String(), n.asCaller)
	if err != nil {
		t.Fatal(err)
	}
	defer shown.Close()
	if _, err := shown.Read(make([]byte, 1)); err != nil { // the settings: the server has accepted the certificate
		t.Fatal(err)
	}
	for kind, connect := range n.clients() { // after which the server has the connection
		if got := n.ask(connect()); got != "b" {
			t.Errorf("%s: %s", kind, got)
		}
	}
	if err := n.stop(); err != nil {
		t.Error(err)
	}
	if n.log.Len() > 0 {
		t.Errorf("it logs %s", strings.TrimSpace(n.log.String()))
	}
}

// TestStopEndsCalls checks that calls from other nodes that are in progress when the node stops end with the reason.
func TestStopEndsCalls(t *testing.T) {
	n := newNodes(t, nil)
	var calls []testpb.TestService_FullDuplexCallClient
	for _, connect := range n.clients() {
		call, err := connect().FullDuplexCall(n.ctx())
		if err == nil {
			err = call.Send(&testpb.StreamingOutputCallRequest{})
		}
		if err == nil {
			_, err = call.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		calls = append(calls, call)
	}
	if err := n.stop(); err != nil {
		t.Error(err)
	}
	for _, call := range calls {
		if _, err := call.Recv(); err == nil || !strings.Contains(err.Error(), server.ErrStopping.Error()) {
			t.Errorf("a call ended with %v", err)
		}
	}
}
