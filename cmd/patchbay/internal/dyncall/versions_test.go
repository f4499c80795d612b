package dyncall_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/dyncall"
)

// TestBuiltinOfAnnouncedVersions: of a plugin without reflection, the services are those of the versions that it announces.
func TestBuiltinOfAnnouncedVersions(t *testing.T) {
	const dra = "k8s.io.kubelet.pkg.apis.dra."
	for _, tc := range []struct {
		plugin dyncall.Plugin
		has    []protoreflect.FullName
		lacks  []protoreflect.FullName
	}{
		{dyncall.Plugin{Type: "CSIPlugin"}, []protoreflect.FullName{"csi.v1.Node"}, nil},
		{dyncall.Plugin{Type: "CSIPlugin", Versions: []string{"1.0.0"}}, []protoreflect.FullName{"csi.v1.Node", "csi.v1.GroupController"}, nil},
		{dyncall.Plugin{Type: "CSIPlugin", Versions: []string{"0.3.0"}}, nil, []protoreflect.FullName{"csi.v1.Node", "csi.v1.Identity"}},
		{dyncall.Plugin{Type: "csi-node", Versions: []string{"v1.9.0"}}, []protoreflect.FullName{"csi.v1.Node"}, []protoreflect.FullName{"csi.v1.Controller"}},
		{dyncall.Plugin{Type: "DRAPlugin", Versions: []string{"v1.DRAPlugin"}}, []protoreflect.FullName{dra + "v1.DRAPlugin"},
			[]protoreflect.FullName{dra + "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"}},
		{dyncall.Plugin{Type: "DRAPlugin", Versions: []string{"v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"}},
			[]protoreflect.FullName{dra + "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"}, []protoreflect.FullName{dra + "v1.DRAPlugin"}},
	} {
		var names []protoreflect.FullName
		for _, service := range dyncall.Builtin(tc.plugin).Services() {
			names = append(names, service.FullName())
		}
		for _, name := range tc.has {
			if !slices.Contains(names, name) {
				t.Errorf("%+v lacks %s", tc.plugin, name)
			}
		}
		for _, name := range tc.lacks {
			if slices.Contains(names, name) {
				t.Errorf("%+v has %s", tc.plugin, name)
			}
		}
	}
}

// TestUnannounced: a service of another version is not called by its full name either, and the error says why; one that is not of the
// plugin's type at all is.
func TestUnannounced(t *testing.T) {
	beta := dyncall.Builtin(dyncall.Plugin{Type: "DRAPlugin", Versions: []string{"v1beta1.DRAPlugin"}})
	const why = "to no version that the plugin announces: "
	for _, selector := range []string{
		"k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources", "v1.DRAPlugin/NodePrepareResources",
		"v1.DRAResourceHealth/NodeWatchResources", "v1alpha1.DRAResourceHealth/NodeWatchResources",
	} {
		if _, err := beta.Method(selector); err == nil || !strings.Contains(err.Error(), why+`"v1beta1.DRAPlugin"`) {
			t.Errorf("%s: %v", selector, err)
		}
	}
	old := dyncall.Builtin(dyncall.Plugin{Type: "CSIPlugin", Versions: []string{"0.3.0"}})
	if _, err := old.Method("csi.v1.Node/NodeGetInfo"); err == nil || !strings.Contains(err.Error(), why+`"0.3.0"`) {
		t.Errorf("CSI 0.3: %v", err)
	}
	for _, selector := range []string{"NodePrepareResources", "DRAPlugin/NodePrepareResources", "csi.v1.Node/NodeGetInfo"} {
		if _, err := beta.Method(selector); err != nil {
			t.Errorf("%s: %v", selector, err)
		}
	}
}
