package dynamicplugins_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
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

// An interceptor of the calls on shared connections, here one that answers them itself.
func ExampleWithDialOptions() {
	answer := func(_ context.Context, method string, _, _ any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
		fmt.Println(method)
		return nil
	}
	registry, err := dynamicplugins.Open(nil, nil, dynamicplugins.WithDialOptions(grpc.WithUnaryInterceptor(answer)))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer registry.Shutdown()
	conn, err := registerAndConnect(registry)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = grpc_health_v1.NewHealthClient(conn).Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	fmt.Println(err)
	// Output:
	// /grpc.health.v1.Health/Check
	// <nil>
}

func registerAndConnect(registry *dynamicplugins.Store) (grpc.ClientConnInterface, error) {
	err := registry.RegisterPlugin(&dynamicplugins.PluginInfo{
		Type: "health", Name: "hello", AllocID: "1",
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/run/hello.sock"},
	})
	if err != nil {
		return nil, err
	}
	return registry.Conn(context.Background(), "health", "hello")
}

// advice is what a caller can do about an error of a registry.
func advice(err error) string {
	if down, ok := errors.AsType[*dynamicplugins.UnreachableError](err); ok {
		return fmt.Sprintf("wait until %s is back: %v", down.Name, down.Reason)
	}
	switch {
	case errors.Is(err, dynamicplugins.ErrNotConfirmed):
		return "wait until the host has found the plugin again"
	case errors.Is(err, dynamicplugins.ErrNotFound):
		return "wait until the plugin registers"
	case errors.Is(err, dynamicplugins.ErrNotSaved), errors.Is(err, dynamicplugins.ErrNotLoaded):
		return "look after the disk; the change did not take place"
	case errors.Is(err, dynamicplugins.ErrShutdown):
		return "the host ends"
	case errors.Is(err, dynamicplugins.ErrInvalid), errors.Is(err, dynamicplugins.ErrNoDispenser),
		errors.Is(err, dynamicplugins.ErrWrongClient):
		return "correct the program"
	}
	return "give up"
}

// A plugin that was registered before a restart is called once somebody, mostly the host, confirms that it lives.
func ExampleStore_Conn() {
	if err := callRestored(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// wait until the plugin registers
	// wait until the host has found the plugin again
	// wait until hello is back: its socket is gone
	// correct the program
	// the host ends
}

func callRestored() error {
	dir, err := os.MkdirTemp("", "registry")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	state, err := boltstate.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		return err
	}
	defer state.Close()
	before, err := dynamicplugins.Open(state, nil)
	if err != nil {
		return err
	}
	_, err = before.Conn(context.Background(), "greeter", "hello")
	fmt.Println(advice(err))
	err = before.RegisterPlugin(&dynamicplugins.PluginInfo{
		Type: "greeter", Name: "hello", AllocID: "1",
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/run/hello.sock"},
	})
	if err != nil {
		return err
	}
	before.Shutdown()

	after, err := dynamicplugins.Open(state, nil, dynamicplugins.WithConfirmTimeout(10*time.Millisecond))
	if err != nil {
		return err
	}
	_, err = after.Conn(context.Background(), "greeter", "hello")
	fmt.Println(advice(err))
	// A runtime does this when no process accepts on the socket.
	if err := after.MarkUnreachable("greeter", "hello", "1", errors.New("its socket is gone")); err != nil {
		return err
	}
	_, err = after.Conn(context.Background(), "greeter", "hello")
	fmt.Println(advice(err))
	_, err = after.DispensePlugin("greeter", "hello")
	fmt.Println(advice(err))
	after.Shutdown()
	_, err = after.Conn(context.Background(), "greeter", "hello")
	fmt.Println(advice(err))
	return nil
}
