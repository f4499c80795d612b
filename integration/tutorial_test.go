package integration

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// step is a command of the tutorial, and what it is to print.
type step struct {
	line    int
	command string
	output  []string
}

// block is a block of code of a page.
type block struct {
	line     int    // of what opens it
	section  string // the heading of the second level above it
	language string
	text     []string
}

// blocks returns the blocks of code of a page.
func blocks(t *testing.T, page string) (all []block) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	inside, section := false, ""
	for i, line := range strings.Split(string(text), "\n") {
		switch language, fence := strings.CutPrefix(strings.TrimSpace(line), "```"); {
		case fence && !inside:
			all = append(all, block{line: i + 1, section: section, language: language})
			inside = true
		case fence:
			inside = false
		case inside:
			last := &all[len(all)-1]
			last.text = append(last.text, line)
		case strings.HasPrefix(line, "## "):
			section = line
		}
	}
	if inside || len(all) == 0 {
		t.Fatalf("%s has no blocks, or one without an end", page)
	}
	return all
}

// steps returns the commands of a block.
func (b block) steps(t *testing.T) (all []step) {
	t.Helper()
	for i, line := range b.text {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			all = append(all, step{line: b.line + 1 + i, command: command})
		} else if len(all) > 0 {
			all[len(all)-1].output = append(all[len(all)-1].output, line)
		} else {
			t.Fatalf("line %d: output before the first command", b.line+1+i)
		}
	}
	return all
}

// matches says whether a command printed what the page shows. A "…" stands for anything in its line; alone in a line, for any lines.
// Spaces between words are those of a table, whose columns are as wide as they have to be.
func (s step) matches(printed string) bool {
	var pattern strings.Builder
	pattern.WriteString(`\A`)
	for _, line := range s.output {
		if line == "…" {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		quoted := strings.ReplaceAll(regexp.QuoteMeta(strings.Join(strings.Fields(line), " ")), "…", ".*")
		pattern.WriteString(` *` + strings.ReplaceAll(quoted, " ", " *") + ` *\n`)
	}
	pattern.WriteString(`\z`)
	return regexp.MustCompile(pattern.String()).MatchString(printed)
}

// shell is a running bash that is told one command after another.
type shell struct {
	t     *testing.T
	cmd   *exec.Cmd
	input io.Writer
	lines chan string
	end   string // precedes the exit code of each command
}

func newShell(t *testing.T, dir string, env ...string) *shell {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash here")
	}
	s := &shell{t: t, cmd: exec.Command(bash, "--norc", "--noprofile"), lines: make(chan string), end: "the-exit-code-is:"}
	s.cmd.Dir = dir
	s.cmd.Env = append(os.Environ(), env...)
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
			s.t.Fatalf("%s: no end; so far it has printed:\n%s", command, printed)
		}
	}
}

// Every command of the tutorial works and prints what the page shows.
func TestTutorial(t *testing.T) {
	source, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	s := newShell(t, shortTempDir(t), "PATCHBAY_SOURCE="+source, "PATH="+bin+":"+os.Getenv("PATH"), "LC_ALL=C", "GOWORK=off")
	for _, block := range blocks(t, "../docs/tutorials/plugin-author.md") {
		if block.language != "console" {
			t.Errorf("tutorial.md:%d: nothing runs a block of %q", block.line, block.language)
		}
		for _, step := range block.steps(t) {
			printed, code := s.run(step.command)
			if code != "0" {
				t.Fatalf("tutorial.md:%d: %s: exit code %s\n%s", step.line, step.command, code, printed)
			}
			if !step.matches(printed) {
				t.Fatalf("tutorial.md:%d: %s printed:\n%s\nThe page shows:\n%s", step.line, step.command, printed, strings.Join(step.output, "\n"))
			}
		}
	}
}
