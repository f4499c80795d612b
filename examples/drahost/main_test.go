package main

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/sdk"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

type driver struct {
	drav1.UnimplementedDRAPluginServer
}

func (driver) NodePrepareResources(
	context.Context, *drav1.NodePrepareResourcesRequest,
) (*drav1.NodePrepareResourcesResponse, error) {
	return &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{
		"1": {Devices: []*drav1.Device{{PoolName: "p", DeviceName: "gpu-0"}}}, "2": {Error: "no such claim"},
	}}, nil
}

func (driver) NodeUnprepareResources(
	context.Context, *drav1.NodeUnprepareResourcesRequest,
) (*drav1.NodeUnprepareResourcesResponse, error) {
	return &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{"1": nil}}, nil
}

func TestCommands(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- sdk.Serve(ctx, sdk.Plugin{
			Type: registerapi.DRAPlugin, Name: "gpu.example.com", Versions: []string{"v1.DRAPlugin"},
			Socket:   filepath.Join(dir, "gpu.sock"),
			Register: func(s grpc.ServiceRegistrar) { drav1.RegisterDRAPluginServer(s, driver{}) },
		})
	}()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	var out bytes.Buffer
	err := run(t.Context(), dir, strings.NewReader(`wait gpu.example.com
prepare gpu.example.com n/a/1 n/b/2
unprepare gpu.example.com n/a/1
health gpu.example.com
prepare other.example.com n/a/1
prepare gpu.example.com n/a
dance gpu.example.com

`), &out)
	if err != nil {
		t.Fatal(err)
	}
	answers := strings.Split(out.String(), "\n")
	for i, want := range []string{
		`"Name":"gpu.example.com"`,
		`{"1":{"devices":[{"pool_name":"p","device_name":"gpu-0"}]},` +
			`"2":{"error":"DRA driver gpu.example.com did not prepare claim n/b: the driver says: \"no such claim\""}}`,
		`{"1":""}`,
		`null`,
		`{"error":"cannot call DRA driver other.example.com: no DRA driver of that name is registered; start it, or see patchbay status"}`,
		`{"error":"\"n/a\" is no claim: write NAMESPACE/NAME/UID"}`,
		`{"error":"no such command: wait DRIVER, prepare DRIVER CLAIM..., unprepare DRIVER CLAIM... or health DRIVER"}`,
		`{"error":"no such command`,
		``,
	} {
		if i >= len(answers) || !strings.Contains(answers[i], want) {
			t.Fatalf("answer %d is not %s in:\n%s", i, want, out.String())
		}
	}
}
