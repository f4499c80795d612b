package main

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/internal/sock"
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

// serveDriver serves a driver in a directory until the test ends.
func serveDriver(t *testing.T, dir string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- sdk.Serve(ctx, sdk.Plugin{
			Type: registerapi.DRAPlugin, Name: "gpu.example.com", Versions: []string{"v1.DRAPlugin"},
			Socket:   filepath.Join(dir, "gpu.sock"),
			Register: func(s grpc.ServiceRegistrar) { drav1.RegisterDRAPluginServer(s, driver{}) },
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

func TestCommands(t *testing.T) {
	dir := t.TempDir()
	serveDriver(t, dir)
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
		`{"error":"\"n/a\" is not a claim: write NAMESPACE/NAME/UID"}`,
		`{"error":"no such command: wait DRIVER, prepare DRIVER CLAIM..., unprepare DRIVER CLAIM... or health DRIVER"}`,
		`{"error":"no such command`,
		``,
	} {
		if i >= len(answers) || !strings.Contains(answers[i], want) {
			t.Fatalf("answer %d is not %s in:\n%s", i, want, out.String())
		}
	}
}

// registrar is that of a CSI driver: it exits when it is told that it is not registered.
type registrar struct {
	registerapi.UnimplementedRegistrationServer
	asked chan struct{} // somebody wanted to know who it is
	told  chan *registerapi.RegistrationStatus
}

func (r registrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	r.asked <- struct{}{}
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: "disk.csi.example.com", Endpoint: "/nowhere/csi.sock", SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r registrar) NotifyRegistrationStatus(
	_ context.Context, status *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	r.told <- status
	return &registerapi.RegistrationStatusResponse{}, nil
}

// TestOthersAreLeftAlone runs the host on a directory in which another host has a CSI driver, as its documentation has it.
func TestOthersAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	serveDriver(t, dir)
	r := registrar{asked: make(chan struct{}, 10), told: make(chan *registerapi.RegistrationStatus, 10)}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, r)
	listener, err := sock.Listen(filepath.Join(dir, "csi-reg.sock"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	commands, write := io.Pipe()
	ran := make(chan error, 1)
	go func() { ran <- run(t.Context(), dir, commands, io.Discard) }()
	select {
	case <-r.asked:
	case <-time.After(time.Minute):
		t.Error("nobody asked the registrar who it is")
	}
	if _, err := io.WriteString(write, "wait gpu.example.com\n"); err != nil {
		t.Error(err)
	}
	if err := write.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ran; err != nil { // it waits for whatever it has to tell
		t.Error(err)
	}
	server.GracefulStop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	select {
	case status := <-r.told:
		t.Errorf("the CSI driver is told %q by a host that is not for it", status.GetError())
	default:
	}
}
