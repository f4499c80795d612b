package cli_test

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestHangupAtTheStart sends SIGHUP to a daemon whose packages are still being initialized, as the trace of the Go runtime shows. The
// daemon reloads its configuration when it is ready.
func TestHangupAtTheStart(t *testing.T) {
	dir, err := os.MkdirTemp("", "pb") // a short path, because the path of a socket is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "patchbay")
	if err := os.Symlink(os.Args[0], program); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "run", "--plugin-dir", filepath.Join(dir, "plugins"), "--state", filepath.Join(dir, "state.db"),
		"--control-socket", filepath.Join(dir, "control.sock"))
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1", "GORACE=atexit_sleep_ms=0")
	trace, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	send := func(sig os.Signal) {
		if err := cmd.Process.Signal(sig); err != nil {
			t.Error(err)
		}
	}
	const searched, reloaded = "plugin directories have been searched", "configuration reloaded"
	var logged []string
	lines := bufio.NewScanner(trace)
	for lines.Scan() {
		var record struct{ Msg string }
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "init github.com/prometheus/client_golang/prometheus "):
			send(syscall.SIGHUP)
		case json.Unmarshal([]byte(line), &record) == nil && (record.Msg == searched || record.Msg == reloaded):
			if logged = append(logged, record.Msg); record.Msg == reloaded {
				send(syscall.SIGTERM)
			}
		}
	}
	if err := cmd.Wait(); err != nil || !slices.Equal(logged, []string{searched, reloaded}) {
		t.Errorf("the daemon ended with %v after it had logged %q", err, logged)
	}
}
