// Hello is a plugin in ten lines: started by hand, by systemd with socket activation, or launched by a host, it serves the example service
// until it is told to stop.
//
//	go run ./hello /run/patchbay/plugins/hello.sock
package main

import (
	"context"
	"fmt"
	"os"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk"
)

type hello struct {
	v1beta1.UnimplementedExampleServer
}

func main() {
	p := sdk.Plugin{
		Type: "ExamplePlugin", Name: "hello", Versions: []string{"v1beta1"},
		Register: func(s grpc.ServiceRegistrar) { v1beta1.RegisterExampleServer(s, hello{}) },
	}
	if len(os.Args) > 1 {
		p.Socket = os.Args[1]
	}
	if err := sdk.Serve(context.Background(), p); err != nil {
		fmt.Fprintln(os.Stderr, "hello:", err)
		os.Exit(1)
	}
}

func (hello) GetExampleInfo(context.Context, *v1beta1.ExampleRequest) (*v1beta1.ExampleResponse, error) {
	return &v1beta1.ExampleResponse{}, nil
}
