package integration

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sampleResource is the resource of the sample device plugin.
const sampleResource = "example.com/resource"

// deviceInfo is what "devices list -o json" says about a device.
type deviceInfo struct {
	Resource string `json:"resource"`
	ID       string `json:"id"`
	Health   string `json:"health"`
	Owner    string `json:"owner"`
}

// deviceDaemon is a daemon that can be killed and started again with the same files.
type deviceDaemon struct {
	*daemon
	sockets string // the directory of kubelet.sock
	flags   []string
	kill    func()
}

func newDeviceDaemon(t *testing.T) *deviceDaemon {
	t.Helper()
	dir := t.TempDir()
	d := &deviceDaemon{
		daemon:  &daemon{dir: filepath.Join(dir, "plugins"), control: filepath.Join(dir, "control.sock")},
		sockets: filepath.Join(dir, "device-plugins"),
	}
	d.flags = []string{
		"run", "--plugin-dir", d.dir, "--state", filepath.Join(dir, "state.db"), "--control-socket", d.control,
		"--handler", "DevicePlugin=device", "--device-socket-dir", d.sockets,
	}
	d.start(t)
	return d
}

// start starts the daemon. It is killed at the end of the test at the latest.
func (d *deviceDaemon) start(t *testing.T) {
	t.Helper()
	p := &process{t: t, name: "patchbay", output: newOutput(), exited: make(chan struct{})}
	p.cmd = exec.CommandContext(context.Background(), filepath.Join(bin, "patchbay"), d.flags...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // it says that the daemon was killed
	}()
	d.kill = sync.OnceFunc(func() {
		_ = p.cmd.Process.Kill() // fails only if it has ended
		<-p.exited
	})
	t.Cleanup(func() {
		d.kill()
		if t.Failed() {
			t.Logf("output of the daemon:\n%s", p.output)
		}
	})
	d.process = p
	p.waitForLine("plugin directories have been searched")
}

func (d *deviceDaemon) devices() []deviceInfo {
	d.t.Helper()
	var devices []deviceInfo
	if err := json.Unmarshal(d.patchbay("devices", "list", "-o", "json"), &devices); err != nil {
		d.t.Fatal(err)
	}
	return devices
}

// untilDevices waits until both devices of the sample plugin are in a state; Dev-2 has an owner.
func (d *deviceDaemon) untilDevices(health, owner string) {
	d.t.Helper()
	want := []deviceInfo{{sampleResource, "Dev-1", health, ""}, {sampleResource, "Dev-2", health, owner}}
	deadline := time.Now().Add(patience)
	for {
		got := d.devices()
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("within %v, -want +got:\n%s", patience, cmp.Diff(want, got))
		}
		pause()
	}
}

// pause waits a little for what no command waits for.
func pause() { <-time.After(50 * time.Millisecond) }

// fails runs a command that has to fail and returns what it says.
func (d *deviceDaemon) fails(args ...string) string {
	d.t.Helper()
	cmd := exec.CommandContext(d.t.Context(), filepath.Join(bin, "patchbay"), append(args, "--control-socket", d.control)...)
	output, err := cmd.CombinedOutput()
	if err == nil {
		d.t.Errorf("patchbay %s does not fail: %s", strings.Join(args, " "), output)
	}
	return string(output)
}

// checkAllocation allocates Dev-2, checks that it cannot be allocated again, and returns the allocation as JSON.
func (d *deviceDaemon) checkAllocation() []byte {
	d.t.Helper()
	given := d.patchbay("devices", "allocate", sampleResource, "job", "--device", "Dev-2", "-o", "json")
	var a struct {
		Devices []string `json:"devices"`
		Answer  struct {
			Mounts []struct {
				HostPath string `json:"hostPath"`
			} `json:"mounts"`
		} `json:"answer"`
	}
	if err := json.Unmarshal(given, &a); err != nil {
		d.t.Fatal(err)
	}
	if !slices.Equal(a.Devices, []string{"Dev-2"}) || len(a.Answer.Mounts) != 1 || a.Answer.Mounts[0].HostPath != "/tmp/Dev-2" {
		d.t.Errorf("allocated is %s", given)
	}
	if said := d.fails("devices", "allocate", sampleResource, "other", "--count", "2"); !strings.Contains(said, "not enough devices") {
		d.t.Errorf("a second allocation says %q", said)
	}
	return given
}

// checkKept checks that an allocation is what it was, and nobody else's.
func (d *deviceDaemon) checkKept(given []byte) {
	d.t.Helper()
	again := d.patchbay("devices", "allocate", sampleResource, "job", "--device", "Dev-2", "-o", "json")
	if diff := cmp.Diff(string(given), string(again)); diff != "" {
		d.t.Errorf("the allocation has changed, -before +after:\n%s", diff)
	}
	said := d.fails("devices", "allocate", sampleResource, "other", "--device", "Dev-2")
	if !strings.Contains(said, "device is in use") && !strings.Contains(said, "plugin is not available") {
		d.t.Errorf("an allocation of what is allocated says %q", said)
	}
}

// forgetSampleFiles removes what the sample device plugin makes for its devices.
func forgetSampleFiles(t *testing.T) {
	t.Cleanup(func() {
		for _, path := range []string{"/tmp/Dev-1", "/tmp/Dev-2"} {
			_ = os.Remove(path) // it need not be there
		}
	})
}

func TestDevicesThroughThePluginDirectory(t *testing.T) {
	forgetSampleFiles(t)
	d := newDeviceDaemon(t)
	p := startDevicePlugin(t, d.daemon)
	d.wait(deviceID, "registered")
	d.untilDevices("healthy", "")
	given := d.checkAllocation()
	d.untilDevices("healthy", "job")

	d.kill()
	d.start(t)
	d.wait(deviceID, "registered")
	d.checkKept(given)
	d.untilDevices("healthy", "job")

	p.stop()
	d.wait(deviceID, "deregistered")
	d.untilDevices("unavailable", "job")
	d.checkKept(given)
	d.patchbay("devices", "release", sampleResource, "job")
	d.untilDevices("unavailable", "")
}

// The sample plugin registers by itself with a kubelet.sock at the kubelet's own path, and does it again when somebody makes that anew.
func TestDevicesTheOlderWay(t *testing.T) {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("only root can show the plugin another directory in the place of the kubelet's")
	}
	forgetSampleFiles(t)
	d := newDeviceDaemon(t)
	p := start(t, nil, "atkubelet", d.sockets, filepath.Join(bin, "sample-device-plugin"))
	p.waitForLine("Device Plugin registered with the Kubelet")
	d.wait(deviceID, "registered")
	d.untilDevices("healthy", "")
	listed := d.list()
	if len(listed) != 1 || filepath.Dir(listed[0].Endpoint) != d.sockets || listed[0].Source != "discovered" {
		t.Errorf("listed are %+v, want one plugin whose endpoint is in %s", listed, d.sockets)
	}
	given := d.checkAllocation()

	d.kill()
	d.start(t)
	d.checkKept(given)
	p.waitForLine("inotify: file created, restarting")
	p.waitForCount("Device Plugin registered with the Kubelet", 2) // it waits for 10 s
	d.wait(deviceID, "registered")
	d.untilDevices("healthy", "job")
	d.checkKept(given)

	p.stop()
	d.wait(deviceID, "deregistered")
	d.untilDevices("unavailable", "job")
	if listed := d.list(); len(listed) != 0 {
		t.Errorf("after the end of the plugin, listed are %+v", listed)
	}
}

// waitForCount waits until the process has written a text a number of times.
func (p *process) waitForCount(part string, n int) {
	p.t.Helper()
	timeout := time.NewTimer(2 * patience)
	defer timeout.Stop()
	for {
		changed := p.output.changed()
		if strings.Count(p.output.String(), part) >= n {
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			p.t.Fatalf("%s has not written %q %d times", p.name, part, n)
		}
	}
}
