package device_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/handlers/device"
	"github.com/patchbay-dev/patchbay/sdk"
)

// A host starts using device plugins, and gives one of a plugin's devices to a job.
func Example() {
	if err := giveGadget(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// prepares devices: "", has preferences: ""
	// job-7 has [gadget-1] and is started with GADGETS=gadget-1
	// gadget-1 can be used, owner "job-7"
	// gadget-2 can be used, owner ""
	// for job-8: wait until devices change
	// allocations: 0
}

// What plugins can make a host hold and wait for is bounded. Here there is room for one resource.
func ExampleHandler_Open() {
	if err := registerTwo(&device.Handler{CallTimeout: time.Second, ListTimeout: time.Second, MaxDevices: 64, MaxTotalDevices: 256, MaxResources: 1}); err != nil {
		fmt.Println(err)
	}
	// Output:
	// example.com/gadget is in use: true
	// example.com/gizmo is in use: false
}

func registerTwo(devices *device.Handler) error {
	dir, err := os.MkdirTemp("", "dev")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "plugin.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	newFake("one").register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()

	if err := devices.Open(); err != nil {
		return err
	}
	for _, resource := range []string{"example.com/gadget", "example.com/gizmo"} {
		err := devices.RegisterPlugin(resource, socket, []string{"v1beta1"}, nil)
		fmt.Println(resource, "is in use:", err == nil)
	}
	err = devices.Close()
	server.Stop()
	return errors.Join(err, <-served)
}

func usable(health device.Health) string {
	switch health {
	case device.Healthy:
		return "can be used"
	case device.Unhealthy:
		return "is broken"
	case device.Missing:
		return "is not listed any more"
	case device.Unavailable:
	}
	return "has no plugin that works"
}

// advice is what a caller can do about an error of Allocate.
func advice(err error) string {
	switch {
	case errors.Is(err, device.ErrNotEnough), errors.Is(err, device.ErrInUse), errors.Is(err, device.ErrUnhealthy):
		return "wait until devices change"
	case errors.Is(err, device.ErrUnavailable):
		return "wait until the plugin is back"
	case errors.Is(err, device.ErrConflict):
		return "release what the owner has"
	case errors.Is(err, device.ErrRefused):
		return "ask the author of the plugin"
	case errors.Is(err, device.ErrInvalid), errors.Is(err, device.ErrNotFound):
		return "correct the request"
	case errors.Is(err, device.ErrClosed):
		return "the host ends"
	}
	return "give up"
}

func giveGadget() error {
	dir, err := os.MkdirTemp("", "dev")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	plugins := filepath.Join(dir, "plugins")
	state, err := boltstate.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		return err
	}
	devices := &device.Handler{
		Store:     state.Bucket("device"),
		SocketDir: filepath.Join(dir, "device-plugins"), // for plugins that register on kubelet.sock
		PluginDir: plugins,
	}
	if err := devices.Open(); err != nil {
		return err
	}
	runtime, err := patchbay.New(patchbay.Config{PluginDirs: []string{plugins}, State: state})
	if err != nil {
		return err
	}
	runtime.AddHandler(registerapi.DevicePlugin, devices)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- runtime.Run(ctx) }()

	// Elsewhere, a plugin comes up.
	plugin := newFake("gadget-1", "gadget-2")
	pluginCtx, stopPlugin := context.WithCancel(context.Background())
	defer stopPlugin()
	pluginEnded := make(chan error, 1)
	go func() {
		pluginEnded <- sdk.Serve(pluginCtx, sdk.Plugin{
			Type: registerapi.DevicePlugin, Name: "example.com/gadget", Versions: []string{"v1beta1"},
			Socket:   filepath.Join(plugins, "gadget.sock"),
			Register: func(s grpc.ServiceRegistrar) { plugin.register(s) },
		})
	}()

	info, err := runtime.Registry().WaitForPlugin(ctx, registerapi.DevicePlugin, "example.com/gadget")
	if err != nil {
		return err
	}
	fmt.Printf("prepares devices: %q, has preferences: %q\n", info.Options[device.KeyPreStart], info.Options[device.KeyPreferred])
	given, err := devices.Allocate(ctx, device.Request{Resource: "example.com/gadget", Owner: "job-7"})
	if err != nil {
		return err
	}
	fmt.Println("job-7 has", given.Devices, "and is started with GADGETS="+given.Answer.Envs["GADGETS"])
	all, _ := devices.Snapshot()
	for _, d := range all {
		fmt.Printf("%s %s, owner %q\n", d.ID, usable(d.Health), d.Owner)
	}
	changed := devices.Changed()
	_, err = devices.Allocate(ctx, device.Request{Resource: "example.com/gadget", Owner: "job-8", Count: 2})
	fmt.Println("for job-8:", advice(err))
	if _, err := devices.Release(ctx, "example.com/gadget", "job-7"); err != nil {
		return err
	}

	<-changed
	_, allocations := devices.Snapshot()
	fmt.Println("allocations:", len(allocations))

	// The plugin ends, and then the host: first its runtime, then the handler, and the state last.
	stopPlugin()
	err = <-pluginEnded
	cancel()
	return errors.Join(err, <-ended, devices.Close(), state.Close())
}
