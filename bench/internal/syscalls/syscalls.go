// Package syscalls counts the system calls of a process, and of what it starts, with the programs strace or perf. It does not count
// nanosleep, with which the Go runtime's monitor passes the time.
package syscalls

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
)

// ErrUnavailable is the error of a [Tracer] where there is no such program, or no permission to trace.
var ErrUnavailable = errors.New("system calls cannot be traced")

// Tracer returns when the system calls of a process are traced. It writes to the directory. The trace ends with the context at the latest.
type Tracer func(ctx context.Context, process int, dir string) (*Trace, error)

// Tracers are all of them, by name.
var Tracers = map[string]Tracer{"strace": Strace, "perf": Perf}

// Trace is a program that traces a process and what that starts.
type Trace struct {
	cmd   *exec.Cmd
	calls func() ([]*Calls, error)
}

// Detach ends the trace and returns the system calls of each process. The first is the process that was attached to.
func (t *Trace) Detach() ([]*Calls, error) {
	if err := t.cmd.Process.Signal(syscall.SIGINT); err != nil {
		return nil, err
	}
	var ended *exec.ExitError
	if err := t.cmd.Wait(); err != nil && !errors.As(err, &ended) {
		return nil, err
	}
	return t.calls()
}

// command returns a command that does not outlive this process.
func command(ctx context.Context, program string, arguments ...string) (*exec.Cmd, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	cmd := exec.CommandContext(ctx, path, arguments...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

// The names under which [Calls] counts the system calls that wait, by what they do or return.
const (
	FutexWait = "futex wait"
	FutexWake = "futex wake"
	// Events is a call of epoll_pwait that returned events, NoEvents one that did not: it only looked, or a timer expired.
	Events   = "epoll_pwait with events"
	NoEvents = "epoll_pwait without events"
)

// Calls are the system calls of one process.
type Calls struct {
	Program string // the name of the last program that the process executed while it was traced; empty if none
	ByName  map[string]int
}

// begin counts a system call, unless it is counted by what it returns.
func (c *Calls) begin(name string, wakes bool) {
	switch name {
	case "nanosleep", "clock_nanosleep", "restart_syscall", "epoll_pwait", "epoll_pwait2", "epoll_wait":
		return
	case "futex":
		name = FutexWait
		if wakes {
			name = FutexWake
		}
	}
	c.ByName[name]++
}

// end counts a system call that is counted by what it returns.
func (c *Calls) end(name string, result int) {
	switch name {
	case "epoll_pwait", "epoll_pwait2", "epoll_wait":
		name = NoEvents
		if result > 0 {
			name = Events
		}
		c.ByName[name]++
	}
}

// processes are the processes that are traced, by number.
type processes struct {
	list []*Calls
	by   map[int]*Calls
}

func newProcesses(attached int) *processes {
	p := &processes{by: map[int]*Calls{}}
	p.get(attached)
	return p
}

func (p *processes) get(id int) *Calls {
	if p.by[id] == nil {
		p.by[id] = &Calls{ByName: map[string]int{}}
		p.list = append(p.list, p.by[id])
	}
	return p.by[id]
}
