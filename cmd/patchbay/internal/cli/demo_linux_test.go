package cli_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// runDemo runs the demo in a temporary directory of its own, to which it is given a relative path if that is wanted, and sends it the
// signal after a while, if it is still running.
func runDemo(t *testing.T, relative bool, signal os.Signal, after time.Duration) (output string, exit int, tmp string) {
	t.Helper()
	tmp, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	cmd := exec.CommandContext(t.Context(), "patchbay", "demo")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	if relative {
		cmd.Dir, cmd.Env = filepath.Dir(tmp), append(os.Environ(), "TMPDIR="+filepath.Base(tmp))
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if signal != nil {
		// Twice, like somebody impatient.
		for _, after := range []time.Duration{after, after + 3*time.Millisecond} {
			timer := time.AfterFunc(after, func() { _ = cmd.Process.Signal(signal) })
			defer timer.Stop()
		}
	}
	_ = cmd.Wait()
	return out.String(), cmd.ProcessState.ExitCode(), tmp
}

// children returns the command lines of the processes that have the directory in their arguments.
func children(t *testing.T, dir string) []string {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, line := range lines {
		// A process may be gone by now.
		if text, err := os.ReadFile(line); err == nil && strings.Contains(string(text), dir) {
			found = append(found, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return found
}

func TestDemo(t *testing.T) {
	for _, relative := range []bool{false, true} {
		t.Run(fmt.Sprintf("relative=%v", relative), func(t *testing.T) { checkDemo(t, relative) })
	}
}

func checkDemo(t *testing.T, relative bool) {
	t.Helper()
	out, exit, tmp := runDemo(t, relative, nil, 0)
	if exit != 0 {
		t.Fatalf("exit code %d:\n%s", exit, out)
	}
	for _, want := range []string{
		"registered ExamplePlugin/alpha", "registered ExamplePlugin/beta", "called v1beta2 GetExampleInfo: answered",
		"superseded instance", ", 0 failed\n", "noticed that no process accepts on the socket of beta", "remembers alpha",
		"the same instance registered again",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the output does not say %q:\n%s", want, out)
		}
	}
	if left, _ := os.ReadDir(tmp); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if left := children(t, filepath.Base(tmp)); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
}

func TestDemoInterrupted(t *testing.T) {
	for i := range 12 {
		signal := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}[i%3]
		out, exit, tmp := runDemo(t, false, signal, rand.N(200*time.Millisecond))
		interrupted := exit == 1 && strings.HasSuffix(out, "interrupted; all processes and files of the demo are gone\n")
		early := exit == -1 // before it listens to signals
		if exit != 0 && !interrupted && !early {
			t.Errorf("exit code %d:\n%s", exit, out)
		}
		if left, _ := os.ReadDir(tmp); len(left) > 0 {
			t.Errorf("left behind: %v after\n%s", left, out)
		}
		if left := children(t, tmp); len(left) > 0 {
			t.Errorf("still running: %v after\n%s", left, out)
		}
	}
}

// However the demo ends, its children end with it.
func TestDemoKilled(t *testing.T) {
	for range 5 {
		_, _, tmp := runDemo(t, false, syscall.SIGKILL, rand.N(300*time.Millisecond))
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			left := children(t, tmp)
			if len(left) == 0 {
				break
			}
			if time.Since(began) > patience {
				t.Fatalf("still running: %v", left)
			}
		}
	}
}
