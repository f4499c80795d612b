package process

import (
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestInheritedDescriptorsStay: what this process inherited is not open in those that it starts, whether they survive or not.
func TestInheritedDescriptorsStay(t *testing.T) {
	fd, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0) // without O_CLOEXEC, as a descriptor that a shell handed over
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for name, survive := range map[string]bool{"Ends": false, "Survives": true} {
		t.Run(name, func(t *testing.T) {
			g := NewGroup(Config{StateDir: t.TempDir()})
			p, err := g.Start(Spec{Name: "ls", Path: "/bin/ls", Args: []string{"ls", "-l", "/proc/self/fd"}, Survive: survive})
			if err != nil {
				t.Fatal(err)
			}
			listed, err := io.ReadAll(p.Stdout())
			if err != nil {
				t.Error(err)
			}
			if _, err := io.ReadAll(p.Stderr()); err != nil {
				t.Error(err)
			}
			<-p.Done()
			for line := range strings.Lines(string(listed)) {
				if strings.Contains(line, "/etc/passwd") {
					t.Errorf("the process has a descriptor that it was not meant to have: %s", line)
				}
			}
			if strings.Count(string(listed), "->") != 4 { // standard input, output, error, and the directory that is listed
				t.Errorf("the process has other descriptors:\n%s", listed)
			}
			if err := p.Stdout().Close(); err != nil {
				t.Error(err)
			}
			if err := p.Stderr().Close(); err != nil {
				t.Error(err)
			}
			if err := g.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestGraceIsFiveSeconds: what is not configured otherwise gets SIGKILL 5 s after it was asked to end.
func TestGraceIsFiveSeconds(t *testing.T) {
	if g := (Grace{}).orDefault(); (g.Stdin + g.Term).Seconds() != 5 {
		t.Errorf("SIGKILL is sent after %v, want 5 s", g.Stdin+g.Term)
	}
}
