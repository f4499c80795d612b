package integration

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// starts is how often a race is given the chance to be lost.
func starts() int {
	if testing.Short() {
		return 10
	}
	return 50
}

// A socket file exists a moment before its plugin listens on it. A plugin that starts is registered all the same, at once and silently.
func TestDevicePluginStartsManyTimes(t *testing.T) {
	d := startDaemon(t)
	for range starts() {
		p := startDevicePlugin(t, d)
		checkSmooth(d, deviceID)
		p.stop()
		d.wait(deviceID, "deregistered")
	}
	checkEvents(t, d, starts(), 0)
}

// The same with a moment that is long enough to be met each time.
func TestListenAfterBind(t *testing.T) {
	const id = "CSIPlugin/late.example.com"
	d := startDaemon(t)
	delays := []time.Duration{0, time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond}
	var after []string
	late := 0 // plugins that a busy machine kept from listening for about as long as the daemon waits for that, 100 ms
	for i := range starts() {
		p := start(t, nil, "lateregistrar", "-name", "late.example.com", "-socket", filepath.Join(d.dir, "late.sock"),
			"-delay", delays[i%len(delays)].String())
		checkSmooth(d, id)
		_, told, _ := strings.Cut(p.waitForLine("told registered=true"), "after=")
		told, listened, _ := strings.Cut(strings.TrimSpace(told), " late=")
		after = append(after, told)
		if took, err := time.ParseDuration(listened); err != nil {
			t.Fatal(err)
		} else if took > 80*time.Millisecond {
			late++
			d.warns = "connect: connection refused"
		}
		p.stop()
		d.wait(id, "deregistered")
	}
	checkEvents(t, d, starts(), late)
	t.Logf("told after listen(2), with a delay of %v in turn: %v", delays, after)
}

// checkSmooth waits until the plugin is registered and checks that no attempt failed.
func checkSmooth(d *daemon, id string) {
	d.t.Helper()
	d.wait(id, "registered")
	for _, p := range d.status(id) {
		if p.State != "registered" || p.Attempts != 0 || p.NextRetry != nil || p.LastError != "" {
			d.t.Errorf("status %s shows %+v, want a plugin that was registered at the first attempt", id, p)
		}
	}
}

// checkEvents checks that a plugin was registered and deregistered n times and that no attempt failed, but for those of late plugins. A
// failure, which "status" forgets at the next success, would be an event.
func checkEvents(t *testing.T, d *daemon, n, late int) {
	t.Helper()
	count := map[string]int{}
	for _, e := range d.events() {
		count[e.Kind]++
	}
	// A plugin that ends closes its listener and removes its socket in one breath. The daemon may see either first.
	delete(count, "unreachable")
	if count["failed"] <= late {
		delete(count, "failed")
	}
	if diff := cmp.Diff(map[string]int{"registered": n, "deregistered": n}, count); diff != "" {
		t.Errorf("events by kind, -want +got:\n%s", diff)
	}
}
