package host

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/patchbay-dev/patchbay/plugin"
)

// broken returns the path of a program of this system in which some bytes are others.
func broken(t *testing.T, change func([]byte) []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "broken")
	program(t, path, change(readProgram(t, "/bin/true")))
	return path
}

// otherMachine makes an ELF file one for a machine that runs nothing of what this one runs: S/390.
func otherMachine(b []byte) []byte {
	const machine, s390 = 18, 22
	b[machine], b[machine+1] = s390, 0
	return b
}

func otherLoader(b []byte) []byte {
	i := bytes.Index(b, []byte("/ld-"))
	copy(b[i:], "/no-")
	return b
}

// TestWhatIsMissing: an error of the system is about the thing that is missing, however the program is started.
func TestWhatIsMissing(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	program(t, text, []byte("echo\n"))
	script := filepath.Join(t.TempDir(), "script")
	program(t, script, []byte("#!/no/such/interpreter\n"))
	for name, tc := range map[string]struct {
		spec Spec
		says string
		is   error
	}{
		"directory":        {Spec{Args: []string{"/bin/true"}, Dir: "/no/such"}, "its working directory: stat /no/such: no such file", fs.ErrNotExist},
		"and no program":   {Spec{Args: []string{"./true"}, Dir: "/no/such"}, "its working directory: stat /no/such: no such file", fs.ErrNotExist},
		"not a directory":  {Spec{Args: []string{"/bin/true"}, Dir: text}, "its working directory: chdir " + text + ": not a directory", syscall.ENOTDIR},
		"interpreter":      {Spec{Args: []string{script}, Interpreter: "/no/such/interpreter"}, "the interpreter /no/such/interpreter", fs.ErrNotExist},
		"other machine":    {Spec{Args: []string{broken(t, otherMachine)}}, "broken is built for s390x, and this machine is", syscall.ENOEXEC},
		"dynamic loader":   {Spec{Args: []string{broken(t, otherLoader)}}, "the dynamic loader /", fs.ErrNotExist},
		"nothing of these": {Spec{Args: []string{text}}, "is neither a program of this system nor a script", syscall.ENOEXEC},
	} {
		for how, change := range map[string]func(*Spec){
			"as it is": func(*Spec) {},
			"limited":  func(s *Spec) { s.Limits.OpenFiles = 100 },
			"checked": func(s *Spec) {
				s.Admit = func(context.Context, plugin.Pin) error { return nil }
			},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				h, spec := newHost(t), tc.spec
				change(&spec)
				p, err := h.Launch(t.Context(), spec)
				if err == nil {
					<-p.Done()
					t.Fatalf("launched, and ended with %v", p.Err())
				}
				if !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("error %q, want one that wraps %q and says %q", err, tc.is, tc.says)
				}
			})
		}
	}
}

// TestRelativeProgram: a relative program is that of the working directory, whether it is checked or not.
func TestRelativeProgram(t *testing.T) {
	ours, theirs := t.TempDir(), t.TempDir()
	program(t, filepath.Join(ours, "program"), []byte("#!/bin/sh\nexit 3\n"))
	program(t, filepath.Join(theirs, "program"), []byte("#!/bin/sh\nexit 4\n"))
	t.Chdir(ours)
	relative, err := filepath.Rel(ours, theirs)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ program, dir, want string }{
		"no directory":       {"./program", "", "exit status 3"},
		"directory":          {"./program", theirs, "exit status 4"},
		"relative directory": {"./program", relative, "exit status 4"},
		"absolute program":   {filepath.Join(ours, "program"), theirs, "exit status 3"},
	} {
		for how, admit := range map[string]func(context.Context, plugin.Pin) error{
			"as it is": nil, "checked": func(context.Context, plugin.Pin) error { return nil },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				p, err := newHost(t).Launch(t.Context(), Spec{Args: []string{tc.program}, Dir: tc.dir, Admit: admit, Interpreter: "/bin/sh"})
				if err != nil {
					t.Fatal(err)
				}
				<-p.Done()
				if err := p.Err(); err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("it ended with %v, want %s", err, tc.want)
				}
			})
		}
	}
	if err := os.Remove(filepath.Join(theirs, "program")); err != nil {
		t.Fatal(err)
	}
	if _, err := newHost(t).Launch(t.Context(), Spec{Args: []string{"./program"}, Dir: theirs}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want %v", err, fs.ErrNotExist)
	}
}
