// Plugin is the plugin of the contestant "ttrpc": a server on the Unix socket that its argument names. It writes one byte to standard
// output when that listens.
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/containerd/ttrpc"

	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "plugin:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, socket string) error {
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	server.Register(v1beta1.Example_ServiceDesc.ServiceName, map[string]ttrpc.Method{
		"GetExampleInfo": func(_ context.Context, unmarshal func(any) error) (any, error) {
			return &v1beta1.ExampleResponse{}, unmarshal(&v1beta1.ExampleRequest{})
		},
	})
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return err
	}
	if _, err := os.Stdout.Write([]byte{1}); err != nil {
		return err
	}
	return server.Serve(ctx, listener)
}
