package csi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/handlers/csi"
	"github.com/patchbay-dev/patchbay/sdk"
)

// A host starts using a CSI driver and calls its Node service.
func Example() {
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	runtime, err := patchbay.New(patchbay.Config{
		PluginDirs:      []string{dir},
		RegistryOptions: csi.Dispensers(nil),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	runtime.AddHandler(registerapi.CSIPlugin, csi.NewHandler(csi.Options{}))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- runtime.Run(ctx) }()

	// Elsewhere, a driver comes up.
	driver := newFake()
	go func() {
		ended <- sdk.Serve(ctx, sdk.Plugin{
			Type: registerapi.CSIPlugin, Name: driverName, Versions: []string{"1.11.0"},
			Socket:   filepath.Join(dir, "fake.sock"),
			Register: driver.register,
		})
	}()

	if err := use(ctx, runtime.Registry()); err != nil {
		fmt.Println(err)
	}
	cancel()
	if err := errors.Join(<-ended, <-ended); err != nil {
		fmt.Println(err)
	}
	// Output:
	// fake.csi.example.com v3.2.1 calls this node node-7 in z1
	// volumes at most: 16
	// CSI 1.11.0: CONTROLLER_SERVICE,VOLUME_ACCESSIBILITY_CONSTRAINTS
	// capabilities: 0
}

// The clients of a service that Dispensers does not know have the timeouts of the drivers, too.
func ExampleBounded() {
	timeouts := func(pluginType, pluginName string) *time.Duration {
		fmt.Println("the timeout of", pluginType+"/"+pluginName)
		timeout := time.Nanosecond
		return &timeout
	}
	groups := func(info *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
		return csipb.NewGroupControllerClient(csi.Bounded(info, conn, timeouts)), nil
	}
	registry, err := dynamicplugins.Open(nil, nil, dynamicplugins.WithConnDispenser(dynamicplugins.PluginTypeCSIController, groups))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer registry.Shutdown()
	err = registry.RegisterPlugin(&dynamicplugins.PluginInfo{
		Type: dynamicplugins.PluginTypeCSIController, Name: driverName,
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/run/driver.sock"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := dynamicplugins.Dispense[csipb.GroupControllerClient](registry, dynamicplugins.PluginTypeCSIController, driverName)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = client.GroupControllerGetCapabilities(context.Background(), &csipb.GroupControllerGetCapabilitiesRequest{})
	fmt.Println(status.Code(err))
	// Output:
	// the timeout of CSIPlugin/fake.csi.example.com
	// DeadlineExceeded
}

// A driver that is not ready yet is no failure: the pipeline, which calls the handler, tries again later.
func ExampleOptions() {
	handler := csi.NewHandler(csi.Options{CallTimeout: time.Second, ReadyTimeout: 10 * time.Millisecond})
	err := handler.RegisterPlugin(driverName, "/run/not/there.sock", []string{"1.11.0"}, nil)
	fmt.Println("again later:", errors.Is(err, cache.ErrRetry))
	// Output: again later: true
}

// use waits for the driver, shows what is known of it, and calls it.
func use(ctx context.Context, registry *dynamicplugins.Store) error {
	info, err := registry.WaitForPlugin(ctx, dynamicplugins.PluginTypeCSINode, driverName)
	if err != nil {
		return err
	}
	if node, ok := csi.NodeInfoOf(info); ok {
		fmt.Println(info.Name, info.Version, "calls this node", node.NodeID, "in", node.Topology["com.example/zone"])
		fmt.Println("volumes at most:", node.MaxVolumesPerNode)
	}
	fmt.Println("CSI", info.Options[csi.KeyVersion]+":", info.Options[csi.KeyCapabilities])
	client, err := dynamicplugins.Dispense[csipb.NodeClient](registry, dynamicplugins.PluginTypeCSINode, driverName)
	if err != nil {
		return err
	}
	answer, err := client.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
	if err != nil {
		return err
	}
	fmt.Println("capabilities:", len(answer.GetCapabilities()))
	return nil
}
