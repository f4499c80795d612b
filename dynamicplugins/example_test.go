package dynamicplugins_test

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

func ExampleRegistry() {
	registry := dynamicplugins.NewRegistry(nil, map[string]dynamicplugins.PluginDispenser{
		"greeter": func(info *dynamicplugins.PluginInfo) (any, error) { return "client of " + info.AllocID, nil },
	})
	defer registry.Shutdown()

	for _, id := range []string{"old", "new"} {
		err := registry.RegisterPlugin(&dynamicplugins.PluginInfo{
			Type: "greeter", Name: "hello", AllocID: id,
			ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/run/" + id + ".sock"},
		})
		if err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(dynamicplugins.Dispense[string](registry, "greeter", "hello"))
	if err := registry.DeregisterPlugin("greeter", "hello", "new"); err != nil {
		fmt.Println(err)
	}
	fmt.Println(dynamicplugins.Dispense[string](registry, "greeter", "hello"))
	fmt.Println(registry.DispensePlugin("greeter", "goodbye"))
	// Output:
	// client of new <nil>
	// client of old <nil>
	// <nil> plugin goodbye for type greeter not found
}

// A client on the shared connection of a plugin: it is made once and follows the plugin over updates and restarts.
func ExampleWithConnDispenser() {
	registry, err := dynamicplugins.Open(nil, nil, dynamicplugins.WithConnDispenser("health",
		func(_ *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
			return grpc_health_v1.NewHealthClient(conn), nil
		}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer registry.Shutdown()

	_, err = dynamicplugins.Dispense[grpc_health_v1.HealthClient](registry, "health", "hello")
	fmt.Println(err)
	// Output:
	// no plugins registered for type: health
}
