package csidispenser_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/csidispenser"
)

type driver struct {
	csi.UnimplementedNodeServer
	csi.UnimplementedControllerServer
}

func (driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "here"}, nil
}

func (driver) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{AvailableCapacity: 7}, nil
}

func TestDispense(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "csi.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterNodeServer(server, driver{})
	csi.RegisterControllerServer(server, driver{})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	registry, err := dynamicplugins.Open(nil, nil, csidispenser.Options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Shutdown()
	for _, ptype := range []string{dynamicplugins.PluginTypeCSINode, dynamicplugins.PluginTypeCSIController} {
		err := registry.RegisterPlugin(&dynamicplugins.PluginInfo{
			Type: ptype, Name: "d", AllocID: "1", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: socket},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	node, err := dynamicplugins.Dispense[csi.NodeClient](registry, dynamicplugins.PluginTypeCSINode, "d")
	if err != nil {
		t.Fatal(err)
	}
	if info, err := node.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}); err != nil || info.NodeId != "here" {
		t.Errorf("NodeGetInfo: %v, %v", info, err)
	}
	controller, err := dynamicplugins.Dispense[csi.ControllerClient](registry, dynamicplugins.PluginTypeCSIController, "d")
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := controller.GetCapacity(t.Context(), &csi.GetCapacityRequest{}); err != nil || answer.AvailableCapacity != 7 {
		t.Errorf("GetCapacity: %v, %v", answer, err)
	}
	if _, err := dynamicplugins.Dispense[csi.IdentityClient](registry, dynamicplugins.PluginTypeCSINode, "d"); !errors.Is(err, dynamicplugins.ErrWrongClient) {
		t.Errorf("a client of another type: %v", err)
	}
}
