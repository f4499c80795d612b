package dra_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/handlers/dra"
	"github.com/patchbay-dev/patchbay/sdk"
)

// A host starts using a DRA driver and has it prepare a claim.
func Example() {
	dir, err := os.MkdirTemp("", "dra")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	runtime, err := patchbay.New(patchbay.Config{PluginDirs: []string{dir}, RegistryOptions: dra.Dispensers(nil)})
	if err != nil {
		fmt.Println(err)
		return
	}
	drivers := &dra.Handler{}
	runtime.AddHandler(registerapi.DRAPlugin, drivers)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- runtime.Run(ctx) }()

	// Elsewhere, a driver comes up.
	driver := newFake("gpu-0")
	go func() {
		ended <- sdk.Serve(ctx, sdk.Plugin{
			Type: registerapi.DRAPlugin, Name: driverName, Versions: []string{"v1.DRAPlugin", "v1alpha1.DRAResourceHealth"},
			Socket:   filepath.Join(dir, "gpu.sock"),
			Register: driver.register,
		})
	}()

	info, err := runtime.Registry().WaitForPlugin(ctx, registerapi.DRAPlugin, driverName)
	if err != nil {
		fmt.Println(err)
	}
	fmt.Println(info.Options[dra.KeyService], info.Options[dra.KeyHealth])
	claim := &drav1.Claim{Namespace: "default", Name: "training", Uid: "6b3d0f2e"}
	prepared, err := drivers.Prepare(ctx, driverName, claim)
	if err != nil {
		fmt.Println(err)
	}
	for uid, result := range prepared {
		fmt.Println(uid, result.Err, result.Devices[0].GetDeviceName(), result.Devices[0].GetCdiDeviceIds())
	}
	unprepared, err := drivers.Unprepare(ctx, driverName, claim)
	fmt.Println(unprepared, err)
	_, err = dynamicplugins.Dispense[drav1.DRAPluginClient](runtime.Registry(), registerapi.DRAPlugin, driverName)
	fmt.Println("a client for who repeats calls himself:", err)
	_, err = drivers.Prepare(ctx, "fpga.example.com", claim)
	fmt.Println(errors.Is(err, dra.ErrNotRegistered))

	driver.reports <- []*drahealth.DeviceHealth{of("gpu-0", drahealth.HealthStatus_UNHEALTHY)}
	devices := drivers.Health(driverName)
	for ; len(devices) == 0; devices = drivers.Health(driverName) {
		time.Sleep(time.Millisecond)
	}
	fmt.Println(devices[0].Pool+"/"+devices[0].Device, advice(devices[0]))

	driver.reports <- nil // a driver ends its streams when it ends
	cancel()
	if err := errors.Join(<-ended, <-ended, drivers.Close()); err != nil {
		fmt.Println(err)
	}
	_, err = drivers.Prepare(context.Background(), driverName, claim)
	fmt.Println(errors.Is(err, dra.ErrClosed))
	// Output:
	// v1.DRAPlugin v1alpha1.DRAResourceHealth
	// 6b3d0f2e <nil> gpu-0 [example.com/gpu=gpu-0]
	// map[6b3d0f2e:<nil>] <nil>
	// a client for who repeats calls himself: <nil>
	// true
	// node-1/gpu-0 is to be replaced
	// true
}

func advice(device dra.DeviceHealth) string {
	switch device.Status {
	case dra.Healthy:
		return "can be used"
	case dra.Unhealthy:
		return "is to be replaced"
	case dra.Unknown:
	}
	return "was not heard of since " + device.LastReport.Format(time.Kitchen)
}

// A driver that does not answer yet is no failure: the pipeline, which calls the handler, tries again later.
func ExampleHandler_RegisterPlugin() {
	drivers := &dra.Handler{CallTimeout: time.Second, Timeout: 5 * time.Second, ConnectTimeout: 10 * time.Millisecond}
	defer drivers.Close()
	err := drivers.RegisterPlugin(driverName, "/run/not/there.sock", []string{"v1.DRAPlugin"}, nil)
	fmt.Println("again later:", errors.Is(err, cache.ErrRetry))
	// Output: again later: true
}
