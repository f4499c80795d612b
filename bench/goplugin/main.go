// Goplugin is the contestants "go-plugin" and "go-plugin-mtls": the host of github.com/hashicorp/go-plugin with gRPC, without and with
// AutoMTLS. It is a module of its own, so that its dependencies do not choose the versions that the others are built with.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"

	"github.com/patchbay-dev/patchbay/bench/goplugin/example"
	"github.com/patchbay-dev/patchbay/bench/internal/launch"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

func main() {
	mtls := os.Args[2] == "go-plugin-mtls"
	if err := launch.Serve(func(string) (launch.Host, error) { return host{mtls: mtls}, nil }, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "go-plugin:", err)
		os.Exit(1)
	}
}

// host launches plugins with go-plugin.
type host struct {
	launch.Incomplete

	mtls bool
}

func (h host) client(logger hclog.Logger, program string, args ...string) *plugin.Client {
	return plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: example.Handshake, Plugins: example.Plugins(), AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		AutoMTLS: h.mtls, Logger: logger, Cmd: exec.CommandContext(context.Background(), program, args...),
	})
}

// Launch implements [launch.Host].
func (h host) Launch(program, name string) (launch.Plugin, error) {
	client := h.client(hclog.NewNullLogger(), program, name)
	protocol, err := client.Client()
	if err != nil {
		return nil, err
	}
	dispensed, err := protocol.Dispense(example.Name)
	if err != nil {
		return nil, err
	}
	service, ok := dispensed.(v1beta1.ExampleClient)
	if !ok {
		return nil, fmt.Errorf("%T is not a client of the example service", dispensed)
	}
	p := launched{client, service}
	return p, p.Call(context.Background())
}

type launched struct {
	client  *plugin.Client
	service v1beta1.ExampleClient
}

// Call implements [launch.Plugin].
func (l launched) Call(ctx context.Context) error {
	_, err := l.service.GetExampleInfo(ctx, &v1beta1.ExampleRequest{})
	return err
}

// Stop implements [launch.Plugin].
func (l launched) Stop() error {
	l.client.Kill()
	return nil
}
