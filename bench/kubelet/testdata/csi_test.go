package csi

import (
	"context"
	"testing"

	"k8s.io/kubernetes/pkg/volume/csi/nodeinfomanager"
)

// noNode is a node on which nothing is recorded.
type noNode struct{ nodeinfomanager.Interface }

func (noNode) UninstallCSIDriver(string) error { return nil }

// TestSecondInstance is what the page says of two CSI drivers with one name in the kubelet.
func TestSecondInstance(t *testing.T) {
	nim = noNode{}
	const name, older, newer = "example.com", "/older.sock", "/newer.sock"
	validate := func(endpoint, version string) error {
		highest, err := PluginHandler.validateVersions(t.Name(), name, endpoint, []string{version})
		if err == nil {
			csiDrivers.Set(name, Driver{endpoint: endpoint, highestSupportedVersion: highest})
		}
		return err
	}
	if err := validate(older, "1.0.0"); err != nil {
		t.Fatal(err)
	}
	if err := validate(newer, "1.0.0"); err == nil {
		t.Error("a second instance of the same version is accepted")
	}
	if err := validate(newer, "1.1.0"); err != nil {
		t.Errorf("a second instance of a higher version is refused: %v", err)
	}
	PluginHandler.DeRegisterPlugin(context.Background(), name, older)
	if _, ok := csiDrivers.Get(name); ok {
		t.Error("the end of the older instance leaves the newer one registered")
	}
}
