package untrusted

import (
	"strings"
	"testing"
)

func TestPluginNames(t *testing.T) {
	long := strings.Repeat("x", 64)
	for _, c := range []struct{ ptype, name, want string }{
		{"CSIPlugin", "hostpath.csi.k8s.io", ""},
		{"CSIPlugin", "A-1..b", ""},
		{"CSIPlugin", long[1:], ""},
		{"CSIPlugin", long, "a CSI driver's name of 64 bytes is too long: 63 are allowed"},
		{"CSIPlugin", "", `"" is not a valid name of a CSI driver`},
		{"CSIPlugin", "a_b", "is not a valid name of a CSI driver"},
		{"CSIPlugin", "a\n", `"a\n" is not a valid name of a CSI driver`},
		{"CSIPlugin", "ü", "is not a valid name of a CSI driver"},
		{"DRAPlugin", "gpu.example.com", ""},
		{"DRAPlugin", "Gpu", "is not a valid name of a DRA driver: it must be a DNS subdomain"},
		{"DRAPlugin", "a..b", "is not a valid name of a DRA driver"},
		{"DRAPlugin", long, "a DRA driver's name of 64 bytes is too long: 63 are allowed"},
		{"DevicePlugin", "example.com/Gpu_1.x", ""},
		{"DevicePlugin", strings.Repeat("d", 244) + "/gpu", ""},
		{"DevicePlugin", strings.Repeat("d", 245) + "/gpu", "not a lower-case DNS name of up to 244 bytes"},
		{"DevicePlugin", "gpu", `resource name "gpu" has no domain`},
		{"DevicePlugin", "x.kubernetes.io/gpu", "has a domain of Kubernetes"},
		{"DevicePlugin", "requests.example.com/gpu", "begins with requests., which is reserved"},
		{"DevicePlugin", "example.com/a/b", "has a name behind the domain that is not made of up to 63 letters"},
		{"DevicePlugin", "example.com/" + long, "has a name behind the domain"},
		{"MyPlugin", "anything at/all", ""},
	} {
		err := PluginName(c.ptype, c.name)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: got %v, want %q", c.ptype, c.name, err, c.want)
		}
	}
}

func TestEndpoint(t *testing.T) {
	for name, want := range map[string]string{
		"gpu.sock": "", "": "is empty", "kubelet.sock": "is not the name of a socket", "../a": "is not the name", ".a": "is not the name",
		`a\b`: "is not the name", strings.Repeat("x", 256): "256 bytes", "\x1b": "cannot be printed",
	} {
		err := Endpoint(name, "kubelet.sock")
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", name, err, want)
		}
	}
}

func TestIsType(t *testing.T) {
	for text, want := range map[string]bool{"": false, "CSIPlugin": true, "a/b": false, "/": false} {
		if IsType(text) != want {
			t.Errorf("%q: got %v", text, !want)
		}
	}
}
