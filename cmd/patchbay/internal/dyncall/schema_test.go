package dyncall

import (
	"fmt"
	"strings"
	"testing"
)

func TestBuiltin(t *testing.T) {
	var names []string
	for _, s := range Builtin(nil).Services {
		names = append(names, string(s.FullName()))
		for i := range s.Methods().Len() {
			if _, err := Builtin(nil).Describe(methodPath(s.Methods().Get(i))); err != nil {
				t.Error(err)
			}
		}
	}
	want := "csi.v1.Controller csi.v1.GroupController csi.v1.Identity csi.v1.Node csi.v1.SnapshotMetadata grpc.health.v1.Health " +
		"k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin pluginregistration.Registration " +
		"v1.DRAResourceHealth v1alpha1.DRAResourceHealth v1beta1.DevicePlugin"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("services %s, want %s", got, want)
	}
}

// TestDRAV1beta1: the derived file has the package of v1beta1 and lacks the fields that only v1 has.
func TestDRAV1beta1(t *testing.T) {
	old, err := Builtin(nil).Describe("k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources")
	if err != nil {
		t.Fatal(err)
	}
	current, err := Builtin(nil).Describe("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(old, "share_id") || strings.Contains(old, "dra.v1.") {
		t.Errorf("v1beta1 is\n%s", old)
	}
	if !strings.Contains(current, "share_id") || !strings.Contains(current, "repeated string cdi_device_ids = 4") ||
		!strings.Contains(old, "repeated string cdi_device_ids = 4") {
		t.Errorf("v1 is\n%s", current)
	}
}

func TestMethod(t *testing.T) {
	s := Builtin(nil)
	for selector, want := range map[string]string{
		"csi.v1.Node/NodeGetInfo":  "csi.v1.Node/NodeGetInfo",
		"/csi.v1.Node/NodeGetInfo": "csi.v1.Node/NodeGetInfo",
		"csi.v1.Node.NodeGetInfo":  "csi.v1.Node/NodeGetInfo",
		"Node/NodeGetInfo":         "csi.v1.Node/NodeGetInfo",
		"NodeGetInfo":              "csi.v1.Node/NodeGetInfo",
		"Probe":                    "csi.v1.Identity/Probe",
		"GetInfo":                  "pluginregistration.Registration/GetInfo",
		"DRAPlugin/NodePrepareResources": "error: method DRAPlugin/NodePrepareResources is ambiguous: write one of " +
			"k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources, k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
		"NodeGetInof": "error: unknown method NodeGetInof: the plugin has no reflection, and no built-in service has it, " +
			"did you mean csi.v1.Node/NodeGetInfo",
		"csi.v1.Nod/NodeGetInfo": "error: unknown method csi.v1.Nod/NodeGetInfo: the plugin has no reflection, and no built-in service has it, " +
			"did you mean csi.v1.Node/NodeGetInfo",
		"Identity/X": "error: unknown method Identity/X: there are csi.v1.Identity/GetPluginInfo, " +
			"csi.v1.Identity/GetPluginCapabilities, csi.v1.Identity/Probe",
		"Identity/probe": "error: unknown method Identity/probe: did you mean csi.v1.Identity/Probe",
		"": "error: unknown method : the plugin has no reflection, and no built-in service has it; the services are csi.v1.Controller, " +
			"csi.v1.GroupController, csi.v1.Identity, csi.v1.Node, csi.v1.SnapshotMetadata, grpc.health.v1.Health, " +
			"k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin, k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin, pluginregistration.Registration, " +
			"v1.DRAResourceHealth, v1alpha1.DRAResourceHealth, v1beta1.DevicePlugin",
	} {
		m, err := s.Method(selector)
		var got string
		if err != nil {
			got = "error: " + err.Error()
		} else {
			got = methodPath(m)
		}
		if got != want {
			t.Errorf("%q: got  %s\nwant %s", selector, got, want)
		}
	}
}

func TestRequestErrors(t *testing.T) {
	s := Builtin(nil)
	m, err := s.Method("NodePublishVolume")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		`{"volumeId": "v"`:      "unexpected EOF",
		"{\n  \"volumeId\": v}": "line 8, column 15: invalid value v",
		`{"volumeI": "v"}`:      `line 7, column 2: unknown field "volumeI"; --describe csi.v1.Node/NodePublishVolume shows the fields`,
		"{\"volumeCapability\": {\n\"mount\": {\"fstyp\": 1}}}": `line 8, column 11: unknown field "fstyp"; --describe `,
		`{"volumeCapability": {"xyz": {}}}`:                     `line 7, column 23: unknown field "xyz"; --describe `,
		`{"volumeId": 5}`:                                       "line 7, column 14: invalid value for string field volumeId: 5",
		`{"volumeId": "v"} true`:                                "line 7, column 19: unexpected token true",
		`[]`:                                                    "line 7, column 1: unexpected token [",
		`{"secrets": {"a": "b", "c": ["d"]}}`:                   "line 7, column 29: invalid value for string field value: [",
		strings.Repeat(`{"volumeId":`, 2000) + "1" + strings.Repeat("}", 2000): "line 7, column 13: invalid value for string field volumeId: {",
	} {
		_, err := s.Request(m, []byte(text), 7)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.60s: got  %v\nwant %s", text, err, want)
		}
	}
	for _, text := range []string{"", " \n", "{}", `{"volume_id": "v", "secrets": {"any": "x"}, "volumeCapability": {"accessMode": {"mode": "SINGLE_NODE_WRITER"}}}`} {
		if _, err := s.Request(m, []byte(text), 1); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}

	own, err := Load(t.Context(), direct{liar{
		services: []string{"x.Thing"}, symbol: func(string) [][]byte { return [][]byte{mustMarshal(t, thing(t))} },
	}}, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if m, err = own.Method("Do"); err != nil {
		t.Fatal(err)
	}
	for depth, want := range map[int]string{maxDepth - 1: "<nil>", maxDepth: "exceeded max recursion depth"} {
		_, err := own.Request(m, []byte(strings.Repeat(`{"self":`, depth)+"{}"+strings.Repeat("}", depth)), 1)
		if fmt.Sprint(err) != want {
			t.Errorf("%d deep: got %v, want %s", depth, err, want)
		}
	}
}

func TestDescribe(t *testing.T) {
	s := Builtin(nil)
	for selector, want := range map[string][]string{
		"Node":                 {"service Node {", "rpc NodeGetInfo ( NodeGetInfoRequest ) returns ( NodeGetInfoResponse );"},
		"NodeGetInfo":          {"// csi.v1.Node/NodeGetInfo\nrpc NodeGetInfo", "message NodeGetInfoResponse {", "message Topology {"},
		"csi.v1.Topology":      {"message Topology {\n", "map<string, string> segments = 1;"},
		"v1beta1.DevicePlugin": {"returns ( stream ListAndWatchResponse )"},
		"Identity/Probe":       {"message ProbeResponse {", "google.protobuf.BoolValue"},
	} {
		text, err := s.Describe(selector)
		if err != nil {
			t.Error(err)
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: no %q in\n%s", selector, w, text)
			}
		}
	}
	if _, err := s.Describe("csi.v1.Topologie"); err == nil {
		t.Error("an unknown type is described")
	}
}
