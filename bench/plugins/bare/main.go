// Bare is the floor's plugin: a server of grpc-go on the Unix socket that its argument names. It writes one byte to standard output when
// that listens.
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

type example struct {
	v1beta1.UnimplementedExampleServer
}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
}

func run(socket string) error {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "unix", socket)
	if err != nil {
		return err
	}
	if _, err := os.Stdout.Write([]byte{1}); err != nil {
		return err
	}
	server := grpc.NewServer()
	v1beta1.RegisterExampleServer(server, example{})
	return server.Serve(listener)
}

func (example) GetExampleInfo(context.Context, *v1beta1.ExampleRequest) (*v1beta1.ExampleResponse, error) {
	return &v1beta1.ExampleResponse{}, nil
}
