package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// platform is the state of a [Group], which is empty on this system.
type platform struct{}

func (platform) start(_ *Group, p *Process) error {
	if p.spec.Survive {
		return fmt.Errorf("a process that survives its host: %w", errors.ErrUnsupported)
	}
	if p.spec.User != nil || p.spec.NoNewPrivs || p.spec.Limits != (plugin.Limits{}) {
		return fmt.Errorf("a process with another user, limits or no_new_privs: %w", errors.ErrUnsupported)
	}
	c, err := startPlain(p)
	if err != nil {
		return err
	}
	p.pid, p.body = c.proc.Pid, c
	return nil
}

func (platform) adopt(context.Context, *Group) ([]*Process, error) {
	return nil, fmt.Errorf("a process that survives its host: %w", errors.ErrUnsupported)
}

func (platform) remove([]string) {}

func (platform) close() error { return nil }

// plain is a child of this process, in its own process group.
type plain struct {
	process *Process
	proc    *os.Process
	stdin   *os.File

	mu     sync.Mutex // guards the fields below; the process ID cannot be reused while mu is held
	reaped bool
}

func startPlain(p *Process) (*plain, error) {
	var files []*os.File
	closeAll := func() {
		for _, f := range files {
			_ = f.Close()
		}
	}
	for range 3 {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll()
			return nil, fmt.Errorf("make a pipe: %w", err)
		}
		files = append(files, r, w)
	}
	const inRead, inWrite, outRead, outWrite, errRead, errWrite = 0, 1, 2, 3, 4, 5
	proc, err := os.StartProcess(p.spec.Path, p.spec.Args, &os.ProcAttr{
		Dir: p.spec.Dir, Env: p.spec.Env, Sys: &syscall.SysProcAttr{Setsid: true},
		Files: slices.Concat([]*os.File{files[inRead], files[outWrite], files[errWrite]}, p.spec.ExtraFiles),
	})
	if err != nil {
		closeAll()
		return nil, err
	}
	_, _, _ = files[inRead].Close(), files[outWrite].Close(), files[errWrite].Close()
	c := &plain{process: p, proc: proc, stdin: files[inWrite]}
	p.stdout, p.stderr = files[outRead], files[errRead]
	input, err := p.spec.input()
	if err == nil { // the write ends when the process exits, even if it does not read its input
		_, err = c.stdin.Write(input)
	}
	if err != nil {
		c.end(kill)
		_, _ = proc.Wait()
		closeAll()
		return nil, fmt.Errorf("write standard input: %w", err)
	}
	return c, nil
}

func (c *plain) end(s step) {
	if s == hangUp {
		_ = c.stdin.Close()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		signalOwnGroup(c.proc, s == kill)
	}
}

func (c *plain) owns(pid int) bool { return pid == c.proc.Pid }

func (c *plain) wait() error {
	if awaitExit(c.proc) {
		c.mu.Lock()
		signalOwnGroup(c.proc, true) // the rest of its process group
		c.reaped = true
		c.mu.Unlock()
	}
	state, err := c.proc.Wait()
	c.mu.Lock()
	c.reaped = true
	c.mu.Unlock()
	_ = c.stdin.Close()
	for _, file := range c.process.spec.Remove {
		if anothers, err := sock.IsAnothers(file, c.process.spec.Sockets[file]); err == nil && !anothers {
			_ = os.Remove(file)
		}
	}
	deadline := time.Now().Add(outputGrace)
	_ = c.process.stdout.SetReadDeadline(deadline)
	_ = c.process.stderr.SetReadDeadline(deadline)
	if err == nil && !state.Success() {
		err = &exec.ExitError{ProcessState: state}
	}
	return err
}

// ReapAdopted does nothing: this process never becomes the parent of processes that it did not start.
func ReapAdopted(context.Context) {}

// MayChangeUser reports whether this process can start and end processes of other users, which needs root.
func MayChangeUser() bool { return os.Geteuid() == 0 }

// Descends always returns false: the ancestors of a process are not known on this system.
func Descends(pid, from int) bool { return false }

// Watchers fails: the watches of other processes are not known on this system.
func Watchers(context.Context, string) ([]int, error) { return nil, errors.ErrUnsupported }

// signalOwnGroup sends SIGKILL or SIGTERM to the group of a process that has not been waited for.
func signalOwnGroup(proc *os.Process, force bool) {
	if force {
		_ = unix.Kill(-proc.Pid, unix.SIGKILL)
		return
	}
	_ = unix.Kill(-proc.Pid, unix.SIGTERM)
	_ = unix.Kill(-proc.Pid, unix.SIGCONT) // a stopped process would not handle the signal
}

// awaitExit blocks until the process has ended, and does not reap it, so that its ID is not reused. It reports whether the process has
// ended; if not, the process cannot be watched.
func awaitExit(proc *os.Process) bool {
	queue, err := unix.Kqueue()
	if err != nil {
		return false
	}
	defer unix.Close(queue)
	var watch unix.Kevent_t
	unix.SetKevent(&watch, proc.Pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	watch.Fflags = unix.NOTE_EXIT
	changes, events := []unix.Kevent_t{watch}, make([]unix.Kevent_t, 1)
	for {
		// Any error except EINTR means that the process has ended already.
		if _, err := unix.Kevent(queue, changes, events, nil); err != unix.EINTR {
			return true
		}
	}
}
