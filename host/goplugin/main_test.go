package goplugin_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// modeEnv makes the test binary a plugin.
const modeEnv = "PATCHBAY_GOPLUGIN_TEST"

// socketEnv is where the liar says that it serves.
const socketEnv = "PATCHBAY_GOPLUGIN_SOCKET"

const (
	cookieKey   = "EXAMPLE_PLUGIN"
	cookieValue = "c0ffee"
)

var cookie = goplugin.HandshakeConfig{MagicCookieKey: cookieKey, MagicCookieValue: cookieValue}

func TestMain(m *testing.M) {
	switch os.Getenv(modeEnv) {
	case "":
		leaktest.Main(m)
	case "silent": // a program that is none of go-plugin
		time.Sleep(time.Hour)
	case "babble":
		fmt.Println("what a lovely\tday")
		time.Sleep(time.Hour)
	case "blank": // it prints an empty line too early
		fmt.Println()
		servePlugin(goplugin.DefaultGRPCServer)
	case "loading": // it prints text without the end of a line too early
		fmt.Print("loading: ")
		servePlugin(goplugin.DefaultGRPCServer)
	case "flood":
		for {
			fmt.Print(strings.Repeat("\x1b[31m", 1000))
		}
	case "liar": // it does not serve where it says
		fmt.Printf("1|3|unix|%s|grpc\n", os.Getenv(socketEnv))
		time.Sleep(time.Hour)
	case "old": // from before AutoMTLS
		if err := os.Unsetenv("PLUGIN_CLIENT_CERT"); err != nil {
			panic(err)
		}
		servePlugin(goplugin.DefaultGRPCServer)
	case "netrpc":
		servePlugin(nil)
	case "bare":
		serveBare()
	default:
		servePlugin(goplugin.DefaultGRPCServer)
	}
}

// serveBare is a plugin as one writes it in another language: over TCP, with no more services than it must have.
func serveBare() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	s := grpc.NewServer()
	v1beta1.RegisterExampleServer(s, example{})
	healthy := health.NewServer()
	healthy.SetServingStatus("", healthpb.HealthCheckResponse_SERVICE_UNKNOWN)
	healthy.SetServingStatus("plugin", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(s, healthy)
	fmt.Printf("1|3|tcp|%s|grpc\n", listener.Addr())
	_ = s.Serve(listener)
}

// servePlugin is the main function of a plugin as users of go-plugin write it. It serves version 3 and 4.
func servePlugin(server func([]grpc.ServerOption) *grpc.Server) {
	hclog.New(&hclog.LoggerOptions{Output: os.Stderr, JSONFormat: true}).Warn("the well runs low", "metres", 2)
	set := goplugin.PluginSet{"example": &examplePlugin{}}
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig:  cookie,
		VersionedPlugins: map[int]goplugin.PluginSet{3: set, 4: set},
		GRPCServer:       server,
	})
}

// examplePlugin is a plugin of one gRPC service.
type examplePlugin struct {
	goplugin.NetRPCUnsupportedPlugin
}

func (*examplePlugin) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	v1beta1.RegisterExampleServer(s, example{})
	s.RegisterService(&tickerDesc, nil)
	return nil
}

func (*examplePlugin) GRPCClient(_ context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return v1beta1.NewExampleClient(conn), nil
}

// largeAnswer is more than gRPC allows a message by default.
const largeAnswer = 16 << 20

// example tells which process answers, and what it is asked to. It prints that it was.
type example struct {
	v1beta1.UnimplementedExampleServer
}

func (example) GetExampleInfo(_ context.Context, request *v1beta1.ExampleRequest) (*v1beta1.ExampleResponse, error) {
	fmt.Println("asked", request.GetRequest())
	answer := fmt.Sprint(os.Getpid())
	switch name := request.GetRequest(); name {
	case "":
	case "slow":
		<-time.After(200 * time.Millisecond)
	case "large":
		answer = strings.Repeat("x", largeAnswer)
	default:
		answer = os.Getenv(name)
	}
	return &v1beta1.ExampleResponse{Error: answer}, nil
}

// tickerDesc is a service whose one method answers with as many messages as it is asked for, 10 ms apart; with endless ones if it is
// asked for none.
var tickerDesc = grpc.ServiceDesc{
	ServiceName: "test.Ticker",
	Streams:     []grpc.StreamDesc{{StreamName: "Tick", ServerStreams: true, Handler: tick}},
}

func tick(_ any, stream grpc.ServerStream) error {
	var n wrapperspb.Int32Value
	if err := stream.RecvMsg(&n); err != nil {
		return err
	}
	for i := int32(0); n.GetValue() == 0 || i < n.GetValue(); i++ {
		if err := stream.SendMsg(wrapperspb.Int32(i)); err != nil {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	return nil
}
