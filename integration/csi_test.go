package integration

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// csiPlugin is what "list -o json" says about a plugin of the csi handler, as far as the handler says it.
type csiPlugin struct {
	State   string            `json:"state"`
	Version string            `json:"version"`
	Roles   []string          `json:"roles"`
	Details map[string]string `json:"details"`
}

// startCSIDaemon starts a daemon that starts using CSI drivers. It may warn of drivers.
func startCSIDaemon(t *testing.T) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{dir: filepath.Join(dir, "plugins"), control: filepath.Join(dir, "control.sock")}
	d.process = start(t, nil, "patchbay", "run", "--plugin-dir", d.dir, "--state", filepath.Join(dir, "state.db"),
		"--control-socket", d.control, "--handler", "CSIPlugin=csi")
	d.waitForLine("plugin directories have been searched")
	return d
}

func (d *daemon) csiPlugins() []csiPlugin {
	d.t.Helper()
	var plugins []csiPlugin
	if err := json.Unmarshal(d.patchbay("list", "-o", "json"), &plugins); err != nil {
		d.t.Fatal(err)
	}
	return plugins
}

// startMortal starts the example driver and returns what kills it.
func startMortal(t *testing.T, socket, root string) (kill func()) {
	t.Helper()
	if err := buildExamples(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "hostdir"), "--socket", socket, "--root", root, "--node-id", "node-1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		cancel()
		_ = cmd.Wait() // it says that the driver was killed
	}
	t.Cleanup(kill)
	return kill
}

// TestCSIHandler: a driver and its registrar are processes of their own, as in Kubernetes. What the driver is shows in the commands, and
// when it is killed behind its registrar, which notices nothing, the daemon does.
func TestCSIHandler(t *testing.T) {
	d := startCSIDaemon(t)
	socket, root := filepath.Join(shortTempDir(t), "csi.sock"), t.TempDir()
	kill := startMortal(t, socket, root)
	registrar := start(t, nil, "csiregistrar", "-csi-address", socket, "-registrar-dir", d.dir)
	d.wait(hostdirID, "registered")
	if line, want := registrar.waitForLine("told"), `told registered=true error=""`; line != want {
		t.Errorf("the registrar printed %q, want %q", line, want)
	}
	want := []csiPlugin{{
		State: "registered", Version: "1.0.0", Roles: []string{"csi-node", "csi-controller"},
		Details: map[string]string{
			"csi/version": "1.0.0", "csi/node-id": "node-1", "csi/topology": `{"hostdir.example.com/node":"node-1"}`,
			"csi/capabilities": "CONTROLLER_SERVICE,VOLUME_ACCESSIBILITY_CONSTRAINTS",
		},
	}}
	if diff := cmp.Diff(want, d.csiPlugins()); diff != "" {
		t.Errorf("list, -want +got:\n%s", diff)
	}
	for _, id := range []string{"csi-node/hostdir.example.com", "csi-controller/hostdir.example.com"} {
		d.wait(id, "registered")
		if status := string(d.patchbay("status", id)); !strings.Contains(status, hostdirID) {
			t.Errorf("status %s prints\n%s", id, status)
		}
	}

	kill()
	d.wait(hostdirID, "deregistered")
	startMortal(t, socket, root)
	d.wait(hostdirID, "registered")
	if diff := cmp.Diff(want, d.csiPlugins()); diff != "" {
		t.Errorf("list after the driver is back, -want +got:\n%s", diff)
	}
	kinds := map[string]int{}
	for _, e := range d.events() {
		kinds[e.Kind]++
	}
	if kinds["unreachable"] != 1 || kinds["deregistered"] != 1 || kinds["registered"] != 2 || kinds["refused"] != 0 {
		t.Errorf("events: %v", kinds)
	}

	registrar.stop()
	d.wait(hostdirID, "deregistered")
}
