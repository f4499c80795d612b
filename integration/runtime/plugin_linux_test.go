package runtime_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk"
)

// pluginEnv makes the test binary a plugin that behaves as its value says.
const pluginEnv = "PATCHBAY_TEST_PLUGIN"

// nameEnv and versionEnv are what it announces.
const nameEnv, versionEnv = "PATCHBAY_TEST_NAME", "PATCHBAY_TEST_VERSION"

// echoer is the service of the launched plugin. It tells which process answered.
type echoer struct {
	v1beta1.UnimplementedExampleServer
}

func (echoer) GetExampleInfo(context.Context, *v1beta1.ExampleRequest) (*v1beta1.ExampleResponse, error) {
	return &v1beta1.ExampleResponse{Error: fmt.Sprint(os.Getpid())}, nil
}

// servePlugin is the main function of a launched plugin.
func servePlugin(behaviour string) int {
	switch behaviour {
	case "admission":
		return serveAdmission()
	case "discovered":
		return serveDiscovered()
	case "pose":
		return pose()
	case "posing":
		return servePosing()
	case "crash":
		fmt.Fprintln(os.Stderr, "cannot go on: the flux is empty")
		return 3
	case "quit":
		return 0
	case "alone": // no other process may run
		own, err := os.OpenFile("alone", os.O_CREATE|os.O_RDWR, 0o600)
		if err == nil {
			err = syscall.Flock(int(own.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "it is not alone:", err)
			return 1
		}
		defer own.Close()
	case "single": // one worker, as of some servers in Python
		return serveSingle()
	case "mute": // launched, and never serves
		ended := make([]byte, 1)
		for {
			if _, err := os.Stdin.Read(ended); err != nil {
				return 0
			}
		}
	}
	fmt.Println("hello from the plugin")
	err := sdk.Serve(context.Background(), sdk.Plugin{
		Type: "T", Name: cmp.Or(os.Getenv(nameEnv), "launched"), Versions: []string{cmp.Or(os.Getenv(versionEnv), "v1beta1")},
		Register: func(s grpc.ServiceRegistrar) { v1beta1.RegisterExampleServer(s, echoer{}) },
		ServerOptions: []grpc.ServerOption{grpc.ChainUnaryInterceptor(
			func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				fmt.Println("called:", path.Base(info.FullMethod))
				return handler(ctx, request)
			},
		)},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// serveSingle is the main function of a plugin that handles one call at a time. GetExampleInfo takes until eight health checks wait for it.
func serveSingle() int {
	var worker sync.Mutex
	checks := make(chan bool, 1000)
	err := sdk.Serve(context.Background(), sdk.Plugin{
		Type: "T", Name: "launched", Versions: []string{"v1beta1"},
		Register: func(s grpc.ServiceRegistrar) { v1beta1.RegisterExampleServer(s, echoer{}) },
		ServerOptions: []grpc.ServerOption{grpc.ChainUnaryInterceptor(
			func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				if path.Base(info.FullMethod) == "Check" {
					checks <- true
				}
				worker.Lock()
				defer worker.Unlock()
				if path.Base(info.FullMethod) == "GetExampleInfo" {
					for range 8 + len(checks) {
						<-checks
					}
				}
				return handler(ctx, request)
			},
		)},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func TestMain(m *testing.M) {
	if behaviour := os.Getenv(pluginEnv); behaviour != "" {
		os.Exit(servePlugin(behaviour))
	}
	leaktest.Main(m)
}
