package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// daemon is a running "patchbay run". When the test ends, its log must not have a line above level INFO.
type daemon struct {
	*process

	dir     string // the plugin directory
	control string // the control socket
	warns   string // is in a warning that may come; empty for none
}

// plugin is what "list -o json" says about an instance, without the times, which no test can foretell.
type plugin struct {
	Type       string   `json:"type"`
	Name       string   `json:"name"`
	Version    string   `json:"version"`
	Versions   []string `json:"versions"`
	State      string   `json:"state"`
	Current    bool     `json:"current"`
	Endpoint   string   `json:"endpoint"`
	SocketPath string   `json:"socketPath"`
	Instance   string   `json:"instance"`
	Source     string   `json:"source"`
	Attempts   int      `json:"attempts"`
	NextRetry  *string  `json:"nextRetry"`
	LastError  string   `json:"lastError"`
}

// event is what a line of "events -o json" says.
type event struct {
	Kind     string `json:"kind"`
	Type     string `json:"type"`
	Name     string `json:"name"`
	Instance string `json:"instance"`
	Endpoint string `json:"endpoint"`
}

// startDaemon starts a daemon and returns when it has searched its plugin directory.
func startDaemon(t *testing.T) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{dir: filepath.Join(dir, "plugins"), control: filepath.Join(dir, "control.sock")}
	t.Cleanup(func() { d.checkLog(t) })
	d.process = start(t, nil, "patchbay", "run", "--plugin-dir", d.dir, "--state", filepath.Join(dir, "state.db"),
		"--control-socket", d.control, "--log-format", "json")
	d.waitForLine("plugin directories have been searched")
	return d
}

// checkLog fails the test if the daemon warned of anything. What follows the end of the daemon is seen too.
func (d *daemon) checkLog(t *testing.T) {
	t.Helper()
	for line := range strings.Lines(d.output.String()) {
		var entry struct {
			Level string `json:"level"`
		}
		if d.warns != "" && strings.Contains(line, d.warns) {
			continue
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Level != "INFO" {
			t.Errorf("the daemon wrote what should not be there: %s", line)
		}
	}
}

// patchbay runs a command against the daemon and returns what it prints. The command has to succeed.
func (d *daemon) patchbay(args ...string) []byte {
	d.t.Helper()
	cmd := exec.CommandContext(d.t.Context(), filepath.Join(bin, "patchbay"), append(args, "--control-socket", d.control)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if err != nil {
		d.t.Fatalf("patchbay %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return stdout
}

// wait waits until the plugin is registered or deregistered.
func (d *daemon) wait(id, goal string) {
	d.t.Helper()
	d.patchbay("wait", id, "--for", goal, "--timeout", patience.String())
}

func (d *daemon) list() []plugin { return d.plugins("list") }

func (d *daemon) status(id string) []plugin { return d.plugins("status", id) }

func (d *daemon) plugins(args ...string) []plugin {
	d.t.Helper()
	var plugins []plugin
	if err := json.Unmarshal(d.patchbay(append(args, "-o", "json")...), &plugins); err != nil {
		d.t.Fatal(err)
	}
	return plugins
}

func (d *daemon) events() []event {
	d.t.Helper()
	var events []event
	for decoder := json.NewDecoder(bytes.NewReader(d.patchbay("events", "-o", "json"))); ; {
		var e event
		switch err := decoder.Decode(&e); {
		case errors.Is(err, io.EOF):
			return events
		case err != nil:
			d.t.Fatal(err)
		}
		events = append(events, e)
	}
}
