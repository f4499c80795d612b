//go:build unix

package pluginclient_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	library "github.com/hashicorp/go-plugin"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// modeEnv makes the test binary a plugin, certEnv and keyEnv are files of the plugin's own certificate.
const (
	modeEnv = "PLUGINCLIENT_TEST"
	certEnv = "PLUGINCLIENT_CERT"
	keyEnv  = "PLUGINCLIENT_KEY"
	// versionEnv is a file that says which version the plugin speaks.
	versionEnv = "PLUGINCLIENT_VERSION"
	// textEnv tells a process of the test which host it is to be.
	textEnv = "PLUGINCLIENT_TEXT"
	// fileEnv is a file in which a process writes its ID when it has started.
	fileEnv = "PLUGINCLIENT_FILE"
)

var handshake = library.HandshakeConfig{ProtocolVersion: 3, MagicCookieKey: "BROKERED", MagicCookieValue: "tea"}

func TestMain(m *testing.M) {
	config := &library.ServeConfig{
		HandshakeConfig: handshake, Plugins: library.PluginSet{"talker": &talkerPlugin{}}, GRPCServer: library.DefaultGRPCServer,
	}
	switch mode := os.Getenv(modeEnv); {
	case mode == "" && os.Getenv("PLUGIN_PROTOCOL_VERSIONS") != "": // a plugin whose environment nobody has chosen
	case mode == "":
		// The library watches a process that it is attached to until that ends, in these tests this very one, and waits five seconds for a
		// brokered connection, also if its broker is closed, and as long to connect to one that is multiplexed.
		leaktest.Main(m, goleak.IgnoreAnyFunction("github.com/hashicorp/go-plugin/internal/cmdrunner.pidWait"),
			goleak.IgnoreAnyFunction("github.com/hashicorp/go-plugin.(*GRPCBroker).timeoutWait"),
			goleak.IgnoreAnyFunction("github.com/hashicorp/go-plugin.(*GRPCBroker).knock"))
		return
	case mode == "late":
		announce()
		time.Sleep(time.Hour)
	case mode == "slow": // it says where it serves, and answers nothing for longer than five seconds
		began := time.Now()
		config.GRPCServer = func(options []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(options, grpc.UnaryInterceptor(
				func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
					<-time.After(time.Until(began.Add(6 * time.Second)))
					return handle(ctx, request)
				}))...)
		}
	case mode == "netrpc":
		config.GRPCServer = nil
	case mode == "logs":
		printLog()
	case mode == "floods":
		if _, err := io.Copy(os.Stderr, newFlood()); err != nil {
			panic(err)
		}
	case mode == "host":
		beHost()
		return
	case mode == "tls":
		config.TLSProvider = func() (*tls.Config, error) {
			cert, err := tls.LoadX509KeyPair(os.Getenv(certEnv), os.Getenv(keyEnv))
			return &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}, err
		}
	}
	if file := os.Getenv(versionEnv); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			panic(err)
		}
		version, err := strconv.Atoi(string(text))
		if err != nil {
			panic(err)
		}
		config.VersionedPlugins, config.Plugins = map[int]library.PluginSet{version: config.Plugins}, nil
	}
	fmt.Fprintln(os.Stderr, "here I come")
	library.Serve(config)
	if os.Getenv(modeEnv) == "lingers" { // it serves no more, and has not ended
		time.Sleep(time.Hour)
	}
}

// talkerPlugin is served by both sides, and each can have the other call it through the broker.
type talkerPlugin struct {
	library.NetRPCUnsupportedPlugin
}

func (*talkerPlugin) GRPCServer(broker *library.GRPCBroker, s *grpc.Server) error {
	v1beta1.RegisterExampleServer(s, &talkerServer{broker: broker, stop: s.Stop})
	return nil
}

func (*talkerPlugin) GRPCClient(_ context.Context, broker *library.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return &talker{broker, v1beta1.NewExampleClient(conn)}, nil
}

type talkerServer struct {
	v1beta1.UnimplementedExampleServer
	broker *library.GRPCBroker
	stop   func()
}

// hanging is closed when a call hangs.
var hanging = make(chan struct{})

// GetExampleInfo says who answers or what is in the environment, serves on a brokered connection, or calls the host on one.
func (s *talkerServer) GetExampleInfo(ctx context.Context, request *v1beta1.ExampleRequest) (*v1beta1.ExampleResponse, error) {
	verb, what, _ := strings.Cut(request.GetRequest(), " ")
	answer := fmt.Sprint(os.Getpid())
	switch verb {
	case "env":
		answer = os.Getenv(what)
	case "print":
		fmt.Println(what)
		fmt.Fprintln(os.Stderr, what)
	case "stop":
		go s.stop()
	case "exit":
		os.Exit(1)
	case "args":
		answer = os.Args[0]
	case "dir":
		dir, err := os.Getwd()
		if err != nil {
			return nil, err
		}
		answer = dir
	case "file": // the first of the further files
		text, err := io.ReadAll(os.NewFile(3, "extra"))
		if err != nil {
			return nil, err
		}
		answer = string(text)
	case "hang":
		close(hanging)
		<-ctx.Done()
		return nil, ctx.Err()
	case "await":
		<-hanging
		answer = "hanging"
	case "serve":
		id := s.broker.NextId()
		go s.broker.AcceptAndServe(id, serveEcho)
		answer = fmt.Sprint(id)
	case "call":
		id, err := strconv.ParseUint(what, 10, 32)
		if err != nil {
			return nil, err
		}
		conn, err := s.broker.Dial(uint32(id))
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		return v1beta1.NewExampleClient(conn).GetExampleInfo(ctx, &v1beta1.ExampleRequest{Request: "plugin"})
	}
	return &v1beta1.ExampleResponse{Error: answer}, nil
}

// echo is what is served on brokered connections.
type echo struct {
	v1beta1.UnimplementedExampleServer
}

func (echo) GetExampleInfo(_ context.Context, request *v1beta1.ExampleRequest) (*v1beta1.ExampleResponse, error) {
	return &v1beta1.ExampleResponse{Error: "hello " + request.GetRequest()}, nil
}

func serveEcho(options []grpc.ServerOption) *grpc.Server {
	s := grpc.NewServer(options...)
	v1beta1.RegisterExampleServer(s, echo{})
	return s
}

// talker is what the host has of the plugin.
type talker struct {
	broker *library.GRPCBroker
	client v1beta1.ExampleClient
}

func (p *talker) ask(request string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	answer, err := p.client.GetExampleInfo(ctx, &v1beta1.ExampleRequest{Request: request})
	return answer.GetError(), err
}

// callPlugin calls what the plugin serves on a brokered connection.
func (p *talker) callPlugin() (string, error) {
	text, err := p.ask("serve")
	if err != nil {
		return "", err
	}
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return "", err
	}
	conn, err := p.broker.Dial(uint32(id))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	answer, err := v1beta1.NewExampleClient(conn).GetExampleInfo(context.Background(), &v1beta1.ExampleRequest{Request: "host"})
	return answer.GetError(), err
}

// beCalled has the plugin call what this side serves on a brokered connection. Nothing is served if the broker's process has ended.
func (p *talker) beCalled() (string, error) {
	id := p.broker.NextId()
	served := make(chan *grpc.Server, 1)
	go func() {
		defer close(served)
		p.broker.AcceptAndServe(id, func(options []grpc.ServerOption) *grpc.Server {
			s := serveEcho(options)
			served <- s
			return s
		})
	}()
	answer, err := p.ask(fmt.Sprint("call ", id))
	if s := <-served; s != nil {
		s.Stop()
	}
	return answer, err
}
