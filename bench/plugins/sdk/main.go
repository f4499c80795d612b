// Sdk is a plugin that serves with package sdk. Its argument is its name.
package main

import (
	"context"
	"fmt"
	"os"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk"
)

type example struct {
	v1beta1.UnimplementedExampleServer
}

func main() {
	err := sdk.Serve(context.Background(), sdk.Plugin{
		Type: "LaunchedPlugin", Name: os.Args[1], Versions: []string{"v1beta1"},
		Register: func(s grpc.ServiceRegistrar) { v1beta1.RegisterExampleServer(s, example{}) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "sdk:", err)
		os.Exit(1)
	}
}

func (example) GetExampleInfo(context.Context, *v1beta1.ExampleRequest) (*v1beta1.ExampleResponse, error) {
	return &v1beta1.ExampleResponse{}, nil
}
