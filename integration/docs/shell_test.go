package docs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// shell is a running bash that is told one command after another.
type shell struct {
	t     *testing.T
	cmd   *exec.Cmd
	input io.Writer
	lines chan string
	end   string // precedes the exit code of each command
}

func newShell(t *testing.T, dir string, environment []string) *shell {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	s := &shell{t: t, cmd: exec.Command(bash, "--norc", "--noprofile"), lines: make(chan string), end: "the-exit-code-is:"}
	s.cmd.Dir = dir
	s.cmd.Env = environment
	// What the page starts in the background is in the same process group.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stdout, s.cmd.Stderr = writer, writer
	if s.input, err = s.cmd.StdinPipe(); err == nil {
		err = s.cmd.Start()
	}
	if err := errors.Join(err, writer.Close()); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		for scanner := bufio.NewScanner(reader); scanner.Scan(); {
			select {
			case s.lines <- scanner.Text():
			case <-over:
			}
		}
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // all that is left, if the page failed half-way
		_ = s.cmd.Wait()
		close(over)
		<-reading
		reader.Close()
	})
	return s
}

// run runs a command and returns what it printed, and its exit code.
func (s *shell) run(command string) (printed, code string) {
	s.t.Helper()
	// Standard input is the shell's commands, so the command gets another.
	if _, err := fmt.Fprintf(s.input, "{ %s\n} < /dev/null\necho \"\n%s$?\"\n", command, s.end); err != nil {
		s.t.Fatal(err)
	}
	timeout := time.NewTimer(5 * time.Minute) // the plugin may have to be built from nothing
	defer timeout.Stop()
	for {
		select {
		case line := <-s.lines:
			if code, ok := strings.CutPrefix(line, s.end); ok {
				return strings.TrimSuffix(printed, "\n"), code
			}
			printed += line + "\n"
		case <-timeout.C:
			s.t.Fatalf("%s: no end; until now it has printed:\n%s", command, printed)
		}
	}
}
