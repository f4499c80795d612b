//go:build unix

package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	defaults "github.com/patchbay-dev/patchbay/internal/launch"
)

// registerHosts declares hosts that the tests kill.
func registerHosts() {
	modes["host"] = func(args []string) {
		h := &Host{}
		if err := h.Initialize(pluginConfig()); err != nil {
			fatal(err)
		}
		p, err := h.Launch(context.Background(), self(args[0]))
		if err != nil {
			fatal(err)
		}
		for r := range p.Logs().Follow(context.Background(), -1) {
			fmt.Println(r.Message, p.PID(), h.server.dir.path)
			break
		}
		select {}
	}
}

func TestPluginsEndWithTheirHost(t *testing.T) {
	for _, mode := range []string{"polite", "deaf"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], mode)
		cmd.Env = append(os.Environ(), modeEnv+"=host", "TMPDIR="+shortDir(t))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var word, dir string
		var pid int
		if _, err := fmt.Fscan(out, &word, &pid, &dir); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(dir, socketName)); err != nil {
			t.Error(err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		await(t, func() bool { return isGone(pid) })

		// The next host cleans up what its watchdog has not.
		removeStale(filepath.Dir(dir))
		if _, err := os.Stat(dir); !os.IsNotExist(err) {
			t.Errorf("the host's directory is still there: %v", err)
		}
	}
}

// isGone says whether a process has ended, and nobody but the init process has still to notice.
func isGone(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}
	return strings.Contains(string(stat), ") Z ")
}

// isStopped says whether all threads of a process have stopped, which is some time after it got the signal.
func isStopped(pid int) bool {
	threads, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
	return !slices.ContainsFunc(threads, func(path string) bool {
		stat, err := os.ReadFile(path)
		return err == nil && !strings.Contains(string(stat), ") T ")
	})
}

func TestSurvivor(t *testing.T) {
	state := filepath.Join(shortDir(t), "state")
	first := &Host{StateDir: state}
	initialize(t, first)
	spec := self("polite")
	spec.Name = "survivor"
	spec.Survive = true
	spec.PluginSocket = filepath.Join(t.TempDir(), "p.sock")
	p := launch(t, first, spec)
	said(t, p)()
	first.Close(t.Context())
	select {
	case <-p.Done():
		t.Fatalf("it has ended: %v", p.Err())
	default:
	}
	if isGone(p.PID()) {
		t.Fatal("its process is gone")
	}

	second := &Host{StateDir: state}
	initialize(t, second)
	adopted, err := second.Adopt(t.Context())
	if err != nil || len(adopted) != 1 {
		t.Fatalf("adopted %v, %v", adopted, err)
	}
	q := adopted[0]
	if q.Name() != "survivor" || q.PID() != p.PID() || q.PluginSocket() != spec.PluginSocket || !q.Owns(p.PID()) {
		t.Errorf("adopted %s, process %d, at %s", q.Name(), q.PID(), q.PluginSocket())
	}
	if _, err := second.Launch(t.Context(), spec); err == nil {
		t.Error("another plugin may serve at the same path")
	}
	if err := q.Terminate(t.Context()); !errors.Is(err, ErrTerminated) {
		t.Errorf("terminated: %v", err)
	}
	await(t, func() bool { return isGone(p.PID()) })
}

// TestAdoptedStopTimeout: a plugin that survived its host is stopped within its own StopTimeout.
func TestAdoptedStopTimeout(t *testing.T) {
	state := filepath.Join(shortDir(t), "state")
	first := &Host{StateDir: state}
	initialize(t, first)
	spec := self("deaf") // ends by SIGKILL only
	spec.Survive, spec.StopTimeout = true, 100*time.Millisecond
	p := launch(t, first, spec)
	said(t, p)()
	first.Close(t.Context())

	second := &Host{StateDir: state}
	initialize(t, second)
	adopted, err := second.Adopt(t.Context())
	if err != nil || len(adopted) != 1 {
		t.Fatalf("adopted %v, %v", adopted, err)
	}
	began := time.Now()
	err = adopted[0].Terminate(t.Context())
	if took := time.Since(began); took > defaults.DefaultStopTimeout/2 || errors.Is(err, ErrTerminated) {
		t.Errorf("it ended after %v with %v, want it killed after %v", took, err, spec.StopTimeout)
	}
}

// shortDir returns a temporary directory with a path that leaves room for that of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
