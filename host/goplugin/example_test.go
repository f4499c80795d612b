package goplugin_test

import (
	"context"
	"fmt"
	"os"
	"time"

	library "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/host/goplugin"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// A host launches a plugin of go-plugin, waits until it is registered, and calls it. The plugin is this test, executed again: its main
// function calls Serve of HashiCorp's library and knows nothing of Patchbay.
func ExamplePlugin() {
	dir, err := os.MkdirTemp("", "plugins")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	var connections goplugin.Connections // how such plugins are reached, which differs from all others
	rt, err := patchbay.New(patchbay.Config{
		PluginDirs: []string{dir},
		RegistryOptions: []dynamicplugins.Option{
			dynamicplugins.WithConnections(&connections),
			dynamicplugins.WithConnDispenser("Example", func(_ *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
				return v1beta1.NewExampleClient(conn), nil
			}),
		},
	})
	if err != nil {
		panic(err)
	}
	rt.AddHandler("Example", patchbay.AcceptHandler())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- rt.Run(ctx) }()

	err = rt.Launcher().Set([]launcher.Plugin{{
		Spec: host.Spec{Name: "example", Args: []string{os.Args[0]}, Env: []string{modeEnv + "=serve"}},
		Protocol: &goplugin.Protocol{
			Type: "Example", Name: "example", ProtocolVersions: []int{3, 4}, Connections: &connections,
			Config: &library.ClientConfig{HandshakeConfig: cookie, AutoMTLS: true},
		},
	}})
	if err != nil {
		panic(err)
	}
	info, err := rt.Registry().WaitForPlugin(ctx, "Example", "example")
	if err != nil {
		panic(err)
	}
	fmt.Println(info.Name, "version", info.Version)
	client, err := dynamicplugins.Dispense[v1beta1.ExampleClient](rt.Registry(), "Example", "example")
	if err != nil {
		panic(err)
	}
	answer, err := client.GetExampleInfo(ctx, &v1beta1.ExampleRequest{Request: modeEnv})
	fmt.Println(answer.GetError(), err)

	cancel() // which ends the plugin
	fmt.Println(<-ended)
	// Output:
	// example version 4
	// serve <nil>
	// <nil>
}
