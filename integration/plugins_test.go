package integration

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// deviceID is what the sample device plugin announces.
const deviceID = "DevicePlugin/example.com/resource"

// startDevicePlugin starts the kubelet's sample device plugin. Without a control file it would register by itself with a kubelet, at
// the kubelet's own path, and panic after 10 s.
func startDevicePlugin(t *testing.T, d *daemon) *process {
	t.Helper()
	control := filepath.Join(t.TempDir(), "register")
	if err := os.WriteFile(control, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return start(t, []string{"PLUGIN_SOCK_DIR=" + d.dir, "REGISTER_CONTROL_FILE=" + control}, "sample-device-plugin")
}

// The plugin's name has a slash, it announces no endpoint, and its socket is called dp.<seconds>.
func TestSampleDevicePlugin(t *testing.T) {
	d := startDaemon(t)
	p := startDevicePlugin(t, d)
	d.wait(deviceID, "registered")

	sockets, err := filepath.Glob(filepath.Join(d.dir, "dp.*"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("found sockets %v, %v, want one", sockets, err)
	}
	checkLife(t, d, p, plugin{
		Type: "DevicePlugin", Name: "example.com/resource", Version: "v1beta1", Versions: []string{"v1beta1"},
		Endpoint: sockets[0], SocketPath: sockets[0],
	})
	p.waitForLine(`"GetInfo"`)
	if line, ok := p.output.line("Registration failed"); ok {
		t.Errorf("the plugin was sent a refusal: %s", line)
	}
}

// The driver's versions are names of services, and its endpoint lies outside the plugin directory.
func TestDRADriver(t *testing.T) {
	d := startDaemon(t)
	data := t.TempDir()
	p := start(t, nil, "dradriver", "-driver-name", "gpu.example.com", "-registrar-dir", d.dir, "-data-dir", data)
	d.wait("DRAPlugin/gpu.example.com", "registered")

	if line, want := p.waitForLine("told"), `told registered=true error=""`; line != want {
		t.Errorf("the driver printed %q, want %q", line, want)
	}
	checkLife(t, d, p, plugin{
		Type: "DRAPlugin", Name: "gpu.example.com", Version: "v1.DRAPlugin", Versions: []string{"v1.DRAPlugin", "v1beta1.DRAPlugin"},
		Endpoint: filepath.Join(data, "dra.sock"), SocketPath: filepath.Join(d.dir, "gpu.example.com-reg.sock"),
	})
}

// checkLife checks how the commands show a plugin that is registered, ends it, and checks that it goes. The fields that are the same
// for each registered plugin need not be set.
func checkLife(t *testing.T, d *daemon, p *process, want plugin) {
	t.Helper()
	want.State, want.Current, want.Source = "registered", true, "discovered"
	id := want.Type + "/" + want.Name

	listed := d.list()
	if len(listed) != 1 || listed[0].Instance == "" {
		t.Fatalf("listed are %+v, want one plugin with an instance ID", listed)
	}
	want.Instance = listed[0].Instance
	if diff := cmp.Diff([]plugin{want}, listed); diff != "" {
		t.Errorf("list, -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]plugin{want}, d.status(id)); diff != "" {
		t.Errorf("status %s, -want +got:\n%s", id, diff)
	}

	p.stop()
	d.wait(id, "deregistered")
	if listed := d.list(); len(listed) != 0 {
		t.Errorf("after the end of the plugin, listed are %+v", listed)
	}
	registered := event{Kind: "registered", Type: want.Type, Name: want.Name, Instance: want.Instance, Endpoint: want.Endpoint}
	deregistered := registered
	deregistered.Kind = "deregistered"
	// The daemon may see that nobody accepts on the socket before it sees that the socket was removed.
	events := slices.DeleteFunc(d.events(), func(e event) bool { return e.Kind == "unreachable" })
	if diff := cmp.Diff([]event{registered, deregistered}, events); diff != "" {
		t.Errorf("events, -want +got:\n%s", diff)
	}
}
