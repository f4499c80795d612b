package client_test

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

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/internal/daemon"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk"
)

// withDaemon gives each example a daemon of its own, and a plugin beside it. Mostly "patchbay run" is there already.
func withDaemon(use func(ctx context.Context, controlSocket string)) {
	dir, err := os.MkdirTemp("", "client")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	plugins, controlSocket := filepath.Join(dir, "plugins"), filepath.Join(dir, "control.sock")
	var config daemon.Options
	config.SetDefaults()
	config.PluginDirs, config.State, config.ControlSocket = []string{plugins}, filepath.Join(dir, "state.db"), controlSocket
	config.Handlers = map[string]string{"Greeter": daemon.HandlerAccept}
	d, err := daemon.New(config)
	if err != nil {
		panic(err)
	}
	running, serving := make(chan error, 1), make(chan error, 1)
	go func() { running <- d.Run(ctx) }()
	<-d.Ready()
	go func() {
		serving <- sdk.Serve(ctx, sdk.Plugin{
			Type: "Greeter", Name: "hello", Versions: []string{"1.0.0"}, Socket: filepath.Join(plugins, "hello.sock"),
			Register: func(s grpc.ServiceRegistrar) { v1beta1.RegisterExampleServer(s, v1beta1.UnimplementedExampleServer{}) },
		})
	}()
	use(ctx, controlSocket)
	cancel()
	if err := errors.Join(<-serving, <-running); err != nil {
		panic(err)
	}
}

// Wait for a plugin, and see what else there is.
func Example() {
	withDaemon(func(ctx context.Context, controlSocket string) {
		c := client.New(controlSocket)
		defer c.Close()
		plugin, err := c.Wait(ctx, "Greeter", "hello", client.GoalRegistered)
		if err != nil {
			panic(err)
		}
		fmt.Println(plugin.Name, plugin.Version, plugin.State)

		listing, err := c.List(ctx)
		if err != nil {
			panic(err)
		}
		fmt.Println("plugins:", len(listing.Plugins))
		_, err = c.Get(ctx, "Greeter", "goodbye")
		fmt.Println("not known:", errors.Is(err, client.ErrNotFound))
	})
	// Output:
	// hello 1.0.0 registered
	// plugins: 1
	// not known: true
}

// Follow what happens until a plugin is registered.
func ExampleClient_Events() {
	withDaemon(func(ctx context.Context, controlSocket string) {
		c := client.New(controlSocket)
		defer c.Close()
		for event, err := range c.Events(ctx, &patchbayv1.WatchEventsRequest{Follow: true}) {
			if err != nil {
				panic(err)
			}
			if event.Kind == "registered" {
				fmt.Println(event.Type, event.Name, event.Kind)
				break
			}
		}
	})
	// Output:
	// Greeter hello registered
}

// Learn in which state a plugin is for which waiting was in vain.
func ExampleTimeoutError() {
	withDaemon(func(ctx context.Context, controlSocket string) {
		c := client.New(controlSocket)
		defer c.Close()
		ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		_, err := c.Wait(ctx, "Greeter", "goodbye", client.GoalRegistered)
		if late, ok := errors.AsType[*client.TimeoutError](err); ok {
			fmt.Printf("%s is not %s, and is known: %t\n", late.Name, late.Goal, late.Plugin != nil)
		}
	})
	// Output:
	// goodbye is not registered, and is known: false
}

// Choose devices as the plugin prefers it, and give them to an owner.
func ExampleClient_AllocateDevices() {
	withDevices(func(ctx context.Context, controlSocket string) {
		c := client.New(controlSocket)
		defer c.Close()
		const gpu = "example.com/gpu"
		devices, err := c.PreferredDevices(ctx, &patchbayv1.GetPreferredDevicesRequest{Resource: gpu, Count: 1})
		if err != nil {
			panic(err)
		}
		allocation, err := c.AllocateDevices(ctx, &patchbayv1.AllocateDevicesRequest{Resource: gpu, Owner: "build-17", Devices: devices})
		if errors.Is(err, client.ErrAllocated) {
			panic("build-17 has others already")
		}
		if err != nil {
			panic(err)
		}
		fmt.Println(allocation.Owner, allocation.Devices, allocation.Answer.CdiDevices)
	})
	// Output:
	// build-17 [gpu-3] [example.com/gpu=3]
}

// withDevices stands for a daemon with --handler DevicePlugin=device.
func withDevices(use func(ctx context.Context, controlSocket string)) {
	dir, err := os.MkdirTemp("", "client")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "control.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle(patchbayv1connect.NewDeviceServiceHandler(deviceService{}))
	server := &http.Server{Handler: mux}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	use(context.Background(), path)
	_ = server.Close() // says nothing that matters
	<-ended
}
