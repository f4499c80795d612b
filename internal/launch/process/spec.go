package process

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Spec says what to start.
type Spec struct {
	// Name is for logs and errors, and by it a later host knows a process that survived. It is no part of any path.
	Name string
	// Path is the program to execute; it is not searched for. A program that is open already can be started as /proc/self/fd/N, where N is 3
	// plus its index in ExtraFiles.
	Path string
	// Args are the arguments with the name of the program as the first; Path alone if it is empty.
	Args []string
	// Env is the whole environment. Nothing is inherited and nothing is added.
	Env []string
	// Dir is the working directory; that of the host if empty.
	Dir string
	// Stdin is what the program reads first, at most 64 KiB. Its standard input then stays open until [Process.Terminate] or until the end
	// of the host.
	Stdin []byte
	// ExtraFiles become descriptors 3 and up. They remain the caller's.
	ExtraFiles []*os.File
	// Remove lists files and directories, as absolute paths, that are removed in this order when the process has ended, also if the host is
	// not there any more. That one is not there is no error. A directory with something else in it stays. No symbolic link is followed on the
	// way (on Linux), so the paths have none in their directories; see [Resolve].
	Remove []string
	// User is whom the process runs as; nil for the user of the host.
	User *User
	// Limits bound what the process and its descendants may use. What cannot be limited on this system is an error of Start.
	Limits Limits
	// NoNewPrivs keeps the process and its descendants from gaining privileges by executing a program (setuid, file capabilities).
	NoNewPrivs bool
	// Survive lets the process go on when the host dies or closes the group. It needs [Config].StateDir.
	Survive bool
	// Data is kept for a host that adopts the surviving process; see [Process.Data]. Without Survive it has no effect.
	Data []byte
}

// User is whom a process runs as. It has no supplementary groups.
type User struct{ UID, GID uint32 }

// Limits bound what a process may use. Zero stands for no limit.
type Limits struct {
	// Memory is how many bytes the process and its descendants may use together. One that needs more is killed by the kernel.
	Memory int64
	// CPU is how much processor time they may use together, in thousandths of one processor.
	CPU int64
	// Processes is how many processes and threads there may be of it and its descendants at a time.
	Processes int
	// OpenFiles is how many descriptors each process may have.
	OpenFiles int
}

// Grace says how long [Process.Terminate] waits after each of its steps. A zero field means its default, a negative one skips the wait.
type Grace struct {
	Stdin time.Duration // after standard input was closed, before SIGTERM; 2 s by default
	Term  time.Duration // after SIGTERM, before SIGKILL; 3 s by default, so that a plugin has 5 s in all
	Kill  time.Duration // after SIGKILL, before Terminate gives up waiting; 1 s by default
}

func (g Grace) orDefault() Grace {
	for _, f := range []struct {
		d    *time.Duration
		dflt time.Duration
	}{{&g.Stdin, 2 * time.Second}, {&g.Term, 3 * time.Second}, {&g.Kill, time.Second}} {
		switch {
		case *f.d == 0:
			*f.d = f.dflt
		case *f.d < 0:
			*f.d = 0
		}
	}
	return g
}

// Resolve returns an absolute path whose directory, as far as it exists, has no symbolic links.
func Resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	dir, name := filepath.Split(path)
	if name == "" {
		return path, nil
	}
	if dir, err = filepath.EvalSymlinks(dir); errors.Is(err, fs.ErrNotExist) {
		dir, err = Resolve(filepath.Dir(path))
	}
	return filepath.Join(dir, name), err
}
