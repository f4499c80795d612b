package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/integration/internal/programs"
)

const (
	draName = "gpu.example.com"
	// draClaims are those that the drivers of a test know.
	draClaims = "default/one/1,default/two/2,default/broken/3"
)

// draHost is the example host for DRA drivers.
type draHost struct {
	t     *testing.T
	dir   string // the plugin directory
	stdin io.Writer
	lines chan string
}

var buildDRAHost = sync.OnceValue(func() error {
	return programs.Build(context.Background(), "../examples", bin, programs.Raced, "./drahost")
})

// startDRAHost starts the host. At the end of the test it is ended by the end of its input, and must exit with 0.
func startDRAHost(t *testing.T) *draHost {
	t.Helper()
	if err := buildDRAHost(); err != nil {
		t.Fatal(err)
	}
	h := &draHost{t: t, dir: filepath.Join(t.TempDir(), "plugins"), lines: make(chan string)}
	cmd := exec.CommandContext(context.Background(), filepath.Join(bin, "drahost"), "--plugin-dir", h.dir)
	log := newOutput()
	cmd.Stderr = log
	stdin, stdinErr := cmd.StdinPipe()
	stdout, stdoutErr := cmd.StdoutPipe()
	if err := errors.Join(stdinErr, stdoutErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	h.stdin = stdin
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(h.lines)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			h.lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		if err := stdin.Close(); err != nil {
			t.Error(err)
		}
		for line := range h.lines {
			t.Errorf("nobody asked for %s", line)
		}
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("drahost: %v", err)
		}
		if t.Failed() {
			t.Logf("log of drahost:\n%s", log)
		}
	})
	return h
}

// send sends a command.
func (h *draHost) send(command ...string) {
	h.t.Helper()
	if _, err := io.WriteString(h.stdin, strings.Join(command, " ")+"\n"); err != nil {
		h.t.Fatal(err)
	}
}

// answer waits for the answer of a command.
func (h *draHost) answer() string {
	h.t.Helper()
	line, ok := <-h.lines
	if !ok {
		h.t.Fatal("drahost has ended")
	}
	return line
}

func (h *draHost) ask(command ...string) string {
	h.t.Helper()
	h.send(command...)
	return h.answer()
}

// expect fails the test unless the answer to a command is the JSON want.
func (h *draHost) expect(want string, command ...string) {
	h.t.Helper()
	expectJSON(h.t, want, h.ask(command...))
}

func expectJSON(t *testing.T, want, got string) {
	t.Helper()
	var wanted, gotten any
	if err := errors.Join(json.Unmarshal([]byte(want), &wanted), json.Unmarshal([]byte(got), &gotten)); err != nil {
		t.Fatalf("%v in %s", err, got)
	}
	if diff := cmp.Diff(wanted, gotten); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// startDriver starts the driver with the claims of the tests.
func (h *draHost) startDriver(data string, args ...string) *process {
	h.t.Helper()
	if err := os.MkdirAll(data, 0o700); err != nil {
		h.t.Fatal(err)
	}
	return start(h.t, nil, "dradriver", append([]string{
		"-driver-name", draName, "-registrar-dir", h.dir, "-data-dir", data, "-claims", draClaims,
	}, args...)...)
}

// TestDRAClaims: a driver on the kubelet's helper package prepares and unprepares claims, whichever of the versions it offers.
func TestDRAClaims(t *testing.T) {
	for name, args := range map[string][]string{"Both": nil, "V1": {"-v1beta1=false"}, "V1beta1": {"-v1=false"}} {
		t.Run(name, func(t *testing.T) {
			h := startDRAHost(t)
			p := h.startDriver(t.TempDir(), args...)
			h.ask("wait", draName)
			if line, want := p.waitForLine("told"), `told registered=true error=""`; line != want {
				t.Errorf("the driver printed %q, want %q", line, want)
			}
			const device = `{"devices": [{"request_names": ["gpu"], "pool_name": "node-1", "device_name": "device-0",
				"cdi_device_ids": ["example.com/gpu=device-0"]}]}`
			for range 2 {
				h.expect(`{"1": `+device+`, "2": `+device+`,
					"3": {"error": "DRA driver gpu.example.com did not prepare claim default/broken: the driver says: \"this claim is broken\""}}`,
					"prepare", draName, "default/one/1", "default/two/2", "default/broken/3")
			}
			for range 2 {
				h.expect(`{"1": "", "2": ""}`, "unprepare", draName, "default/one/1", "default/two/2")
			}
			p.waitForLine("unprepare 2")
			// The helper refuses a claim that is not the one that it knows.
			if got := h.ask("prepare", draName, "default/one/77"); !strings.Contains(got, "claim default/one got replaced") {
				t.Errorf("another claim of that name: %s", got)
			}
		})
	}
}

// TestDRARollOver: two instances of a driver run side by side, as in a rolling update. Claims go to the newer one, and go on when the older
// one ends; a claim that the older one was at when it was ended is prepared by the newer one.
func TestDRARollOver(t *testing.T) {
	h := startDRAHost(t)
	data := t.TempDir()
	device := func(name string) string {
		return `{"1": {"devices": [{"request_names": ["gpu"], "pool_name": "node-1", "device_name": "` + name + `",
			"cdi_device_ids": ["example.com/gpu=` + name + `"]}]}}`
	}
	older := h.startDriver(data, "-rolling-update-uid", "a", "-device", "device-a")
	older.waitForLine("told registered=true")
	h.ask("wait", draName)
	h.expect(device("device-a"), "prepare", draName, "default/one/1")

	newer := h.startDriver(data, "-rolling-update-uid", "b", "-device", "device-b", "-block")
	newer.waitForLine("told registered=true")
	h.send("prepare", draName, "default/one/1")
	newer.waitForLine("prepare 1")
	older.stop()
	newest := h.startDriver(data, "-rolling-update-uid", "c", "-device", "device-c")
	newest.waitForLine("told registered=true")
	newer.stop()
	expectJSON(t, device("device-c"), h.answer())
	h.expect(device("device-c"), "prepare", draName, "default/one/1")
	h.expect(`{"1": ""}`, "unprepare", draName, "default/one/1")
	if line, ok := newest.output.line("told registered=false"); ok {
		t.Errorf("the newest was sent a refusal: %s", line)
	}
}

// TestDRARestart: a driver that is killed is registered again when it is back, and prepares again.
func TestDRARestart(t *testing.T) {
	h := startDRAHost(t)
	data := t.TempDir()
	for _, name := range []string{"device-a", "device-b", "device-c"} {
		p := h.startDriver(data, "-device", name)
		p.waitForLine("told registered=true")
		h.ask("wait", draName)
		if got := h.ask("prepare", draName, "default/one/1"); !strings.Contains(got, name) {
			t.Errorf("prepared %s, want %s", got, name)
		}
		p.stop()
	}
}

// TestDRAHealth: what the driver says of its device is known, and is forgotten with the driver.
func TestDRAHealth(t *testing.T) {
	h := startDRAHost(t)
	p := h.startDriver(t.TempDir(), "-health")
	h.ask("wait", draName)
	health := func(is func(answer string) bool) string {
		t.Helper()
		for {
			if answer := h.ask("health", draName); is(answer) || t.Context().Err() != nil {
				return answer
			}
		}
	}
	answer := health(func(answer string) bool { return answer != "null" })
	var devices []map[string]any
	if err := json.Unmarshal([]byte(answer), &devices); err != nil || len(devices) != 1 {
		t.Fatalf("health %s, %v", answer, err)
	}
	delete(devices[0], "LastReport")
	want := map[string]any{"Pool": "node-1", "Device": "device-0", "Status": "healthy", "Message": "fine", "Timeout": 600e9}
	if diff := cmp.Diff(want, devices[0]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	p.stop()
	health(func(answer string) bool { return answer == "null" })
}

// TestDRAHandler: the daemon starts using a driver, and shows what it found.
func TestDRAHandler(t *testing.T) {
	dir := t.TempDir()
	d := &daemon{dir: filepath.Join(dir, "plugins"), control: filepath.Join(dir, "control.sock")}
	d.process = start(t, nil, "patchbay", "run", "--plugin-dir", d.dir, "--state", filepath.Join(dir, "state.db"),
		"--control-socket", d.control, "--handler", "DRAPlugin=dra")
	d.waitForLine("plugin directories have been searched")
	p := start(t, nil, "dradriver", "-driver-name", draName, "-registrar-dir", d.dir, "-data-dir", t.TempDir(), "-health")
	d.wait("DRAPlugin/"+draName, "registered")
	var plugins []struct {
		State   string            `json:"state"`
		Details map[string]string `json:"details"`
	}
	if err := json.Unmarshal(d.patchbay("list", "-o", "json"), &plugins); err != nil || len(plugins) != 1 {
		t.Fatalf("listed %+v, %v", plugins, err)
	}
	want := map[string]string{"dra/service": "v1.DRAPlugin", "dra/health": "v1alpha1.DRAResourceHealth"}
	if diff := cmp.Diff(want, plugins[0].Details); diff != "" || plugins[0].State != "registered" {
		t.Errorf("%s, -want +got:\n%s", plugins[0].State, diff)
	}
	p.stop()
	d.wait("DRAPlugin/"+draName, "deregistered")
}
