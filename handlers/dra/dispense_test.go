package dra_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/handlers/dra"
)

func newRegistry(t *testing.T, timeouts dra.Timeouts) *dynamicplugins.Store {
	t.Helper()
	registry, err := dynamicplugins.Open(nil, nil, dra.Dispensers(timeouts)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(registry.Shutdown)
	return registry
}

func put(t *testing.T, registry *dynamicplugins.Store, s *server, allocID, service string) {
	t.Helper()
	if err := registry.RegisterPlugin(&dynamicplugins.PluginInfo{
		Type: "DRAPlugin", Name: driverName, AllocID: allocID, Options: map[string]string{dra.KeyService: service},
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: s.socket},
	}); err != nil {
		t.Fatal(err)
	}
}

// TestDispense: a client that was dispensed for a driver of one version goes on with a driver of the other.
func TestDispense(t *testing.T) {
	registry := newRegistry(t, nil)
	older, newer := newFake("older"), newFake("newer")
	put(t, registry, serve(t, older.registerV1beta1), "1", "v1beta1.DRAPlugin")
	client, err := dynamicplugins.Dispense[drav1.DRAPluginClient](registry, "DRAPlugin", driverName)
	if err != nil {
		t.Fatal(err)
	}
	check := func(f *fake, id string) {
		t.Helper()
		got, err := client.NodePrepareResources(t.Context(), &drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{claim("1")}})
		if err != nil || got.GetClaims()["1"].GetDevices()[0].GetDeviceName() != id {
			t.Errorf("prepared %v, %v", got, err)
		}
		if _, err := client.NodeUnprepareResources(t.Context(), &drav1.NodeUnprepareResourcesRequest{}); err != nil {
			t.Error(err)
		}
		if n := f.calls.Load(); n != 2 {
			t.Errorf("%d calls", n)
		}
	}
	check(older, "older")
	put(t, registry, serve(t, func(s grpc.ServiceRegistrar) { drav1.RegisterDRAPluginServer(s, newer) }), "2", "v1.DRAPlugin")
	check(newer, "newer")
}

func TestDispensedIsBounded(t *testing.T) {
	registry := newRegistry(t, func(ptype, name string) *time.Duration {
		short := 50 * time.Millisecond
		if ptype != "DRAPlugin" || name != driverName {
			t.Errorf("asked for %s/%s", ptype, name)
		}
		return &short
	})
	f := newFake("a")
	f.prepare = func(ctx context.Context, _ *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	put(t, registry, serve(t, f.register), "1", "")
	client, err := dynamicplugins.Dispense[drav1.DRAPluginClient](registry, "DRAPlugin", driverName)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.NodePrepareResources(t.Context(), &drav1.NodePrepareResourcesRequest{})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
}
