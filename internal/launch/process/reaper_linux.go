package process

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/backoff"
)

// reaper is the parent process of a process without a cgroup. It is a subreaper: a descendant of the process that loses its parent becomes
// a child of the reaper, even if it left the process group. So the reaper finds all descendants and kills them when the process or the host
// ends. The outer reaper is in turn the parent of the reaper, and kills the descendants if the reaper is killed. Each reaper exits with the
// status of its child, so that the host, the parent of the outer reaper, gets the status of the process.
type reaper struct {
	mu      sync.Mutex // guards the fields below; the process ID cannot be reused while mu is held and over is false
	program int
	over    bool  // the program was reaped
	left    []int // processes that were killed afterwards
}

// runOuterReaper is the main function of an outer reaper. Standard input is the inner reaper's connection to the host.
func runOuterReaper() {
	if unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != nil {
		return
	}
	inner, err := startHelper(roleReaper, os.Stdin)
	if err != nil {
		return
	}
	_ = os.Stdin.Close()
	r := reaper{program: inner.pid}
	woken := make(chan os.Signal, 1)
	signal.Notify(woken, unix.SIGCONT)
	go func() {
		for range woken {
			r.signal(inner.pid, unix.SIGCONT) // the inner reaper may be stopped, too
		}
	}()
	exitAs(r.reap())
}

// runReaper is the main function of a reaper. Standard input is connected to the host.
func runReaper() {
	host, order, ok := takeOrder()
	if !ok {
		return
	}
	program := 0
	err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	if err == nil {
		program, err = startReaped(order, host.files)
	}
	host.closeFiles()
	if err != nil {
		_ = host.send(failureOf(err))
		return
	}
	r := reaper{program: program}
	_ = host.send(fromKeeper{PID: program})
	go r.followOrders(host)
	status := r.reap()
	_ = host.send(fromKeeper{Ended: true, Left: r.left})
	exitAs(status)
}

// startReaped starts the program on a new thread, in its cgroups of version 1.
func startReaped(order toKeeper, files []*os.File) (pid int, err error) {
	newThread().do(func() {
		if order.Start.NoNewPrivs {
			if err = forbidPrivs(); err != nil {
				return
			}
		}
		pid, err = startProgram(order.Start, order.V1, order.Start.attributes(files))
	})
	return pid, err
}

// followOrders takes the steps that the host sends. When the connection ends, it kills all descendants.
func (r *reaper) followOrders(host *wire) {
	for {
		order := toKeeper{}
		err := host.decoder.Decode(&order)
		if err != nil {
			order.Step = kill
		}
		switch order.Step {
		case terminate:
			r.signal(-r.program, unix.SIGTERM)
			r.signal(-r.program, unix.SIGCONT) // a stopped process would not handle SIGTERM
		case kill:
			killAll(descendants(os.Getpid()))
		default:
		}
		if err != nil {
			return
		}
	}
}

// signal sends a signal to the program or its group, unless the program was reaped.
func (r *reaper) signal(to int, sig syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		_ = unix.Kill(to, sig)
	}
}

// reap waits for all children, and kills the descendants when the program has ended. It returns the status of the program.
func (r *reaper) reap() (status unix.WaitStatus) {
	for {
		switch err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil); err {
		case nil:
		case unix.EINTR:
			continue
		default: // there are no more children
			slices.Sort(r.left)
			r.left = slices.Compact(r.left) // a process that is being killed may be found twice
			return status
		}
		r.mu.Lock()
		for {
			var ended unix.WaitStatus
			pid, err := unix.Wait4(-1, &ended, unix.WNOHANG, nil)
			if pid <= 0 || err != nil {
				break
			}
			if pid == r.program {
				status, r.over = ended, true
			}
		}
		over := r.over
		r.mu.Unlock()
		if over {
			r.left = append(r.left, killAll(descendants(os.Getpid()))...)
		}
	}
}

// exitAs ends this process with the status of another one.
func exitAs(status unix.WaitStatus) {
	if !status.Signaled() {
		syscall.Exit(status.ExitStatus())
	}
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	sig := status.Signal()
	// Reset the handler of the Go runtime.
	_ = sigactionOf(sig, &sigaction{}, nil)
	_ = unix.Kill(os.Getpid(), sig)
	<-time.After(time.Second) //nolint:forbidigo // the signal arrives sooner
	syscall.Exit(128 + int(sig))
}

// forkUnderReaper starts a program as the child of a reaper, which runs as the user of this process.
func (c *child) forkUnderReaper(what Spec, files []*os.File) error {
	what.ExtraFiles, what.Remove, what.Sockets, what.Data = nil, nil, nil, nil // the host uses them
	w, about, err := startWithOrder(func(stdin *os.File) (err error) {
		c.exit, err = startHelper(roleOuterReaper, stdin)
		return err
	}, toKeeper{Start: &what, V1: c.v1}, files, 0)
	c.pid, c.wire = about.PID, w
	return err
}

// sendStep sends a step to the reaper of the process, and continues a stopped reaper.
func (c *child) sendStep(s step) {
	_ = c.wire.send(toKeeper{Step: s})
	c.exit.signal(unix.SIGCONT)
}

// reportWait bounds the wait for the last message of the inner reaper after the outer one has ended. It is needed only if the inner reaper
// is stopped: if it has ended, its connection has ended, too.
const reportWait = 10 * time.Second

// waitUnderReaper reaps the outer reaper, which has ended, and returns the processes that were killed after the process had ended.
func (c *child) waitUnderReaper() (left []int, err error) {
	_ = c.wire.send(toKeeper{Step: kill}) // in case only the outer reaper was killed
	var last fromKeeper
	_ = c.wire.conn.SetReadDeadline(time.Now().Add(reportWait))
	_ = c.wire.decoder.Decode(&last) // after an error, last.Ended is false
	_ = c.wire.conn.Close()
	err = c.reap()
	if last.Ended {
		return last.Left, err
	}
	// The inner reaper was killed. The process ended with it, and the outer reaper killed the rest. If both were killed at the same time,
	// only the process group can be killed.
	for pid, s := range allStats() {
		if s.group == c.pid && s.start >= c.since && s.alive() && (procID{pid, s.start}).kill() {
			left = append(left, pid)
		}
	}
	return left, fmt.Errorf("the reaper of the process was killed: %w", err)
}

// children are the processes that this process has started and not reaped.
var children = struct { //nolint:gochecknoglobals // child processes are global, too
	starting sync.RWMutex // held while a process is started and not yet in started
	mu       sync.Mutex   // guards started
	// started counts the children by process ID, because the kernel can reuse the ID of a reaped process before forgetChild is called.
	started map[int]int
}{started: map[int]int{}}

// startChild calls start and adds the new process to children.
func startChild(start func() (pid int, err error)) (pid int, err error) {
	children.starting.RLock()
	defer children.starting.RUnlock()
	pid, err = start()
	if err == nil {
		children.mu.Lock()
		children.started[pid]++
		children.mu.Unlock()
	}
	return pid, err
}

// execute starts a program. It is [os.StartProcess] without an [os.Process], which would have another pidfd.
func execute(path string, args []string, attr *syscall.ProcAttr) (pid int, err error) {
	return startChild(func() (int, error) {
		pid, _, err := syscall.StartProcess(path, args, attr)
		if err != nil {
			err = &os.PathError{Op: "fork/exec", Path: path, Err: err}
		}
		return pid, err
	})
}

// forgetChild must be called after a process was reaped.
func forgetChild(pid int) {
	children.mu.Lock()
	defer children.mu.Unlock()
	if children.started[pid]--; children.started[pid] == 0 {
		delete(children.started, pid)
	}
}

// reapPause is the minimum time between two searches for adopted processes, because each search reads all of /proc.
const reapPause = 100 * time.Millisecond

// ReapAdopted reaps orphans until ctx is done, if this process is the first one of a container and so becomes the parent of all orphans. In
// any other process it does nothing. The program must start processes only with a [Group].
func ReapAdopted(ctx context.Context) {
	if os.Getpid() != 1 {
		return
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	for {
		reapAdopted()
		if !backoff.Pause(ctx, reapPause) {
			return
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return
		}
	}
}

func reapAdopted() {
	children.starting.Lock()
	defer children.starting.Unlock()
	children.mu.Lock()
	defer children.mu.Unlock()
	for pid, s := range allStats() {
		if _, own := children.started[pid]; !own && s.parent == os.Getpid() && !s.alive() {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}
