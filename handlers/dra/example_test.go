package dra_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/handlers/dra"
	"github.com/patchbay-dev/patchbay/sdk"
)

// A host takes a DRA driver into use and has it prepare a claim.
func Example() {
	dir, err := os.MkdirTemp("", "dra")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	runtime, err := patchbay.New(patchbay.Config{PluginDirs: []string{dir}})
	if err != nil {
		fmt.Println(err)
		return
	}
	drivers := dra.New(dra.Config{})
	runtime.AddHandler(registerapi.DRAPlugin, drivers)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- runtime.Run(ctx) }()

	// Elsewhere, a driver comes up.
	go func() {
		ended <- sdk.Serve(ctx, sdk.Plugin{
			Type: registerapi.DRAPlugin, Name: driverName, Versions: []string{"v1.DRAPlugin"},
			Socket:   filepath.Join(dir, "gpu.sock"),
			Register: newFake("gpu-0").register,
		})
	}()

	if _, err := runtime.Registry().WaitForPlugin(ctx, registerapi.DRAPlugin, driverName); err != nil {
		fmt.Println(err)
	}
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

	cancel()
	if err := errors.Join(<-ended, <-ended, drivers.Close()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 6b3d0f2e <nil> gpu-0 [example.com/gpu=gpu-0]
	// map[6b3d0f2e:<nil>] <nil>
}
