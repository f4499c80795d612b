package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk"
)

type hello struct {
	v1beta1.UnimplementedExampleServer
}

func (hello) GetExampleInfo(context.Context, *v1beta1.ExampleRequest) (*v1beta1.ExampleResponse, error) {
	return &v1beta1.ExampleResponse{}, nil
}

// A plugin, and a host beside it that finds it.
func ExampleServe() {
	dir, err := os.MkdirTemp("", "sdk")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	host, err := patchbay.New(patchbay.Config{PluginDirs: []string{dir}})
	if err != nil {
		panic(err)
	}
	host.AddHandler("Greeter", patchbay.AcceptHandler())
	ended := make(chan error, 1)
	go func() { ended <- host.Run(ctx) }()

	served := make(chan error, 1)
	serving, stop := context.WithCancel(ctx) // a program of its own needs none: SIGTERM stops it
	go func() {
		served <- sdk.Serve(serving, sdk.Plugin{
			Type: "Greeter", Name: "hello", Versions: []string{"1.0.0"},
			Socket:   filepath.Join(dir, "hello.sock"),
			Register: func(s grpc.ServiceRegistrar) { v1beta1.RegisterExampleServer(s, hello{}) },

			ServerOptions: []grpc.ServerOption{grpc.MaxRecvMsgSize(64 << 10)},
		})
	}()

	plugin, err := host.Registry().WaitForPlugin(ctx, "Greeter", "hello")
	if err != nil {
		panic(err)
	}
	fmt.Println("registered", plugin.Type, plugin.Name, plugin.Version)
	stop()
	fmt.Println("served", <-served)
	cancel()
	<-ended
	// Output:
	// registered Greeter hello 1.0.0
	// served <nil>
}

// An update serves in the place of the instance that runs. The socket of another program is left alone.
func ExamplePlugin_takeOver() {
	dir, err := os.MkdirTemp("", "sdk")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "hello.sock")
	other, err := net.Listen("unix", socket)
	if err != nil {
		panic(err)
	}
	defer other.Close()
	go func() { _ = http.Serve(other, nil) }()

	err = sdk.Serve(context.Background(), sdk.Plugin{
		Type: "Greeter", Name: "hello", Versions: []string{"2.0.0"},
		Socket:   socket,
		Register: func(s grpc.ServiceRegistrar) { v1beta1.RegisterExampleServer(s, hello{}) },
		TakeOver: true,
		HandOver: time.Minute, // a host that is busy may need longer than the default to register the update
	})
	if errors.Is(err, sdk.ErrInUse) {
		fmt.Println("another program serves there: choose another path")
	}
	// Output: another program serves there: choose another path
}

// A launched plugin that serves nothing runs until its host ends it.
func ExampleRun() {
	ctx, cancel := context.WithCancel(context.Background())
	err := sdk.Run(ctx, func(ctx context.Context) error {
		_, err := sdk.Host(ctx)
		fmt.Println(err)
		cancel() // stands for the end of standard input, SIGTERM, …
		<-ctx.Done()
		return nil
	})
	fmt.Println(err)
	// Output:
	// no host launched this process
	// <nil>
}
