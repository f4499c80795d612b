package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSecondDaemon reproduces PAINS 193: of two daemons that are started at the same moment and share a plugin directory, a state file or a
// control socket, exactly one runs, and its launched plugin is registered and answers calls. The other one exits with an error that names
// what they share.
func TestSecondDaemon(t *testing.T) {
	for _, shared := range []string{"pluginDirs", "state", "controlSocket"} {
		t.Run(shared, func(t *testing.T) {
			for range 2 {
				testSecondDaemon(t, shared)
			}
		})
	}
}

func testSecondDaemon(t *testing.T, shared string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var daemons [2]*secondDaemon
	ended := make(chan *secondDaemon, len(daemons))
	for i := range daemons {
		daemons[i] = newSecondDaemon(t, dir, i, shared)
	}
	for _, d := range daemons {
		d.start(t, ended)
		defer d.stop()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var loser *secondDaemon
	select {
	case loser = <-ended:
	case <-ctx.Done():
		t.Fatal("both daemons run")
	}
	winner := daemons[0]
	if winner == loser {
		winner = daemons[1]
	}
	if code := loser.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(loser.stderr.String(), loser.settings[shared]) {
		t.Errorf("one daemon ends with code %d, want 1 and an error about %s:\n%s", code, loser.settings[shared], &loser.stderr)
	}
	t.Logf("%s", bytes.TrimSpace(loser.stderr.Bytes()[bytes.LastIndexByte(bytes.TrimSpace(loser.stderr.Bytes()), '\n')+1:]))
	for _, args := range [][]string{
		{"wait", "ExamplePlugin/launched"},
		{"call", "ExamplePlugin/launched", "grpc.health.v1.Health/Check", "{}"},
	} {
		cmd := exec.CommandContext(ctx, "patchbay", append(args, "--timeout", "1m", "--control-socket", winner.settings["controlSocket"])...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v of the daemon that runs: %v\n%s%s", args, err, out, &winner.stderr)
		}
	}
	select {
	case d := <-ended:
		t.Errorf("the other daemon ends too: %s", &d.stderr)
	default:
	}
}

// secondDaemon is one of two daemons.
type secondDaemon struct {
	settings map[string]string
	config   string
	cmd      *exec.Cmd
	stderr   bytes.Buffer
	done     chan struct{}
}

// newSecondDaemon writes the configuration of a daemon, with paths of its own except for the shared one.
func newSecondDaemon(t *testing.T, dir string, i int, shared string) *secondDaemon {
	t.Helper()
	d := &secondDaemon{settings: map[string]string{}, config: filepath.Join(dir, fmt.Sprint(i, ".yaml")), done: make(chan struct{})}
	for setting, name := range map[string]string{"pluginDirs": "p", "state": "s.db", "controlSocket": "c.sock"} {
		if setting != shared {
			name = fmt.Sprint(i, name)
		}
		d.settings[setting] = filepath.Join(dir, name)
	}
	config := fmt.Sprintf("apiVersion: patchbay.dev/v1alpha1\nkind: Config\npluginDirs: [%s]\nstate: %s\ncontrolSocket: %s\n"+
		"handlers: {ExamplePlugin: accept}\nplugins:\n- {name: l, command: [hello], env: {HELLO_NAME: launched}, autostart: true}\n",
		d.settings["pluginDirs"], d.settings["state"], d.settings["controlSocket"])
	if err := os.WriteFile(d.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *secondDaemon) start(t *testing.T, ended chan<- *secondDaemon) {
	t.Helper()
	d.cmd = exec.Command("patchbay", "run", "--config", d.config)
	d.cmd.Stderr = &d.stderr
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait()
		ended <- d
		close(d.done)
	}()
}

func (d *secondDaemon) stop() {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	<-d.done
}
