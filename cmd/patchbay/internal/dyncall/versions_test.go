package dyncall_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/dyncall"
)

// TestBuiltinOfAnnouncedVersions: a plugin without reflection has the built-in services of the versions that it announces.
func TestBuiltinOfAnnouncedVersions(t *testing.T) {
	const dra = "k8s.io.kubelet.pkg.apis.dra."
	for _, tc := range []struct {
		plugin *patchbayv1.Plugin
		has    []protoreflect.FullName
		lacks  []protoreflect.FullName
	}{
		{&patchbayv1.Plugin{Type: "CSIPlugin"}, []protoreflect.FullName{"csi.v1.Node"}, nil},
		{&patchbayv1.Plugin{Type: "CSIPlugin", Versions: []string{"1.0.0"}}, []protoreflect.FullName{"csi.v1.Node", "csi.v1.GroupController"}, nil},
		{&patchbayv1.Plugin{Type: "CSIPlugin", Versions: []string{"0.3.0"}}, nil, []protoreflect.FullName{"csi.v1.Node", "csi.v1.Identity"}},
		{&patchbayv1.Plugin{Type: "csi-node", Versions: []string{"v1.9.0"}}, []protoreflect.FullName{"csi.v1.Node"}, []protoreflect.FullName{"csi.v1.Controller"}},
		{&patchbayv1.Plugin{Type: "DRAPlugin", Versions: []string{"v1.DRAPlugin"}}, []protoreflect.FullName{dra + "v1.DRAPlugin"},
			[]protoreflect.FullName{dra + "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"}},
		{&patchbayv1.Plugin{Type: "DRAPlugin", Versions: []string{"v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"}},
			[]protoreflect.FullName{dra + "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"}, []protoreflect.FullName{dra + "v1.DRAPlugin"}},
	} {
		var names []protoreflect.FullName
		for _, service := range dyncall.Builtin(tc.plugin).Services {
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

// TestUnannounced: a service of a version that the plugin does not announce cannot be called, even by its full name, and the error has the
// reason. A service of another type can be called.
func TestUnannounced(t *testing.T) {
	beta := dyncall.Builtin(&patchbayv1.Plugin{Type: "DRAPlugin", Versions: []string{"v1beta1.DRAPlugin"}})
	const why = "to no version that the plugin announces: "
	for _, selector := range []string{
		"k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources", "v1.DRAPlugin/NodePrepareResources",
		"v1.DRAResourceHealth/NodeWatchResources", "v1alpha1.DRAResourceHealth/NodeWatchResources",
	} {
		if _, err := beta.Method(selector); err == nil || !strings.Contains(err.Error(), why+`"v1beta1.DRAPlugin"`) {
			t.Errorf("%s: %v", selector, err)
		}
	}
	old := dyncall.Builtin(&patchbayv1.Plugin{Type: "CSIPlugin", Versions: []string{"0.3.0"}})
	if _, err := old.Method("csi.v1.Node/NodeGetInfo"); err == nil || !strings.Contains(err.Error(), why+`"0.3.0"`) {
		t.Errorf("CSI 0.3: %v", err)
	}
	for _, selector := range []string{"NodePrepareResources", "DRAPlugin/NodePrepareResources", "csi.v1.Node/NodeGetInfo"} {
		if _, err := beta.Method(selector); err != nil {
			t.Errorf("%s: %v", selector, err)
		}
	}
}
