package cli_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

const ptyPatience = 2 * time.Minute

// screen is a terminal in which a command runs.
type screen struct {
	t   *testing.T
	pty *os.File
	cmd *exec.Cmd

	mu    sync.Mutex
	text  bytes.Buffer
	more  chan struct{}
	ended chan struct{}
}

func onScreen(t *testing.T, env []string, args ...string) *screen {
	t.Helper()
	s := &screen{t: t, cmd: exec.CommandContext(t.Context(), "patchbay", args...), more: make(chan struct{}, 1), ended: make(chan struct{})}
	s.cmd.Env = append(append(os.Environ(), "TERM=xterm", "NO_COLOR="), env...)
	var err error
	if s.pty, err = pty.StartWithSize(s.cmd, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		b := make([]byte, 4096)
		for {
			n, err := s.pty.Read(b)
			s.mu.Lock()
			s.text.Write(b[:n])
			s.mu.Unlock()
			select {
			case s.more <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		_ = s.pty.Close()
		<-s.ended
	})
	return s
}

func (s *screen) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *screen) shows(part string) {
	s.t.Helper()
	s.showsAfter("", part)
}

// showsAfter waits until the screen shows part after the text before.
func (s *screen) showsAfter(before, part string) {
	s.t.Helper()
	deadline := time.After(ptyPatience)
	isShown := func() bool {
		_, after, ok := strings.Cut(s.said(), before)
		return ok && strings.Contains(after, part)
	}
	for !isShown() {
		select {
		case <-s.more:
		case <-deadline:
			s.t.Fatalf("it does not show %q but\n%q", part, s.said())
		}
	}
}

// ends waits until the command has ended and returns its exit code.
func (s *screen) ends() int {
	s.t.Helper()
	_ = s.cmd.Wait()
	<-s.ended
	return s.cmd.ProcessState.ExitCode()
}

// daemonFor runs a daemon for a test and returns where its sockets are.
func daemonFor(t *testing.T) (dir, control string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	control = filepath.Join(dir, "c.sock")
	cmd := exec.CommandContext(t.Context(), "patchbay", "run", "--plugin-dir", filepath.Join(dir, "p"), "--state", filepath.Join(dir, "s.db"),
		"--control-socket", control, "--accept-type", "ExamplePlugin")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	for range 200 {
		up := exec.CommandContext(t.Context(), "patchbay", "wait", "T/none", "--for", "deregistered", "--control-socket", control)
		if up.Run() == nil {
			return dir, control
		}
	}
	t.Fatal("the daemon does not come up")
	return "", ""
}

func TestTop(t *testing.T) {
	_, control := daemonFor(t)
	s := onScreen(t, nil, "top", "--control-socket", control)
	s.shows("\x1b[?1049h")
	s.shows("0 instances")
	if _, err := s.pty.WriteString("?"); err != nil {
		t.Fatal(err)
	}
	s.shows("show the plugin in detail")
	s.shows("press Enter to go back")
	if _, err := s.pty.WriteString("\r"); err != nil {
		t.Fatal(err)
	}
	s.showsAfter("press Enter to go back", "?: help")
	if _, err := s.pty.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	if code := s.ends(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if !strings.HasSuffix(s.said(), "\x1b[?1049l") {
		t.Errorf("the screen is not given back: %q", s.said())
	}
}

func TestTopNeedsATerminal(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "patchbay", "top").CombinedOutput()
	if err == nil || !strings.Contains(string(out), `"patchbay top" needs a terminal`) {
		t.Errorf("%v: %s", err, out)
	}
}

func TestProgressAndColours(t *testing.T) {
	_, control := daemonFor(t)
	s := onScreen(t, nil, "wait", "T/late", "--timeout", "3s", "--control-socket", control)
	s.shows("T/late is not known")
	if code := s.ends(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	out, _ := exec.CommandContext(t.Context(), "patchbay", "wait", "T/late", "--timeout", "1s", "--control-socket", control).CombinedOutput()
	if strings.Contains(string(out), "\x1b") || strings.Contains(string(out), "\r") {
		t.Errorf("progress in a pipe: %q", out)
	}

	if s := onScreen(t, nil, "doctor", "--control-socket", control); s.ends() > 1 || !strings.Contains(s.said(), "\x1b[") {
		t.Errorf("no colours on a terminal: %q", s.said())
	}
	if s := onScreen(t, []string{"NO_COLOR=1"}, "doctor", "--control-socket", control); s.ends() > 1 || strings.Contains(s.said(), "\x1b[") {
		t.Errorf("colours although NO_COLOR is set: %q", s.said())
	}
}
