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

// reaper is the program that is the parent of a process which has no cgroup, and of all that descends from it: what loses its parent, even
// if it left the process group and holds nothing of the process, becomes the reaper's child. So the reaper finds it, and ends it with the
// process or with the host. It has an outer reaper, to which it is what the process is to itself: that ends what it leaves if it is killed.
// Each ends as its program did, which is how the host, whose child the outer one is, learns that.
type reaper struct {
	mu      sync.Mutex // guards what follows, and the process ID against being given back while it is used
	program int
	over    bool  // the program has been waited for
	left    []int // what was killed after that
}

// runOuterReaper is the whole life of an outer reaper. The host, at the other end of standard input, speaks with the inner one.
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
			r.signal(inner.pid, unix.SIGCONT) // it may have been stopped too
		}
	}()
	endAs(r.reap())
}

// runReaper is the whole life of a reaper. The host is at the other end of standard input.
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
	go r.obey(host)
	status := r.reap()
	_ = host.send(fromKeeper{Ended: true, Left: r.left})
	endAs(status)
}

// startReaped starts the program on a thread of its own, in its cgroups of version 1.
func startReaped(order toKeeper, files []*os.File) (pid int, err error) {
	newThread().do(func() {
		if order.Start.NoNewPrivs {
			if err = forbidPrivs(); err != nil {
				return
			}
		}
		var proc *os.Process
		if proc, err = startProgram(order.Start, order.V1, order.Start.attributes(files)); err == nil {
			pid = proc.Pid
		}
	})
	return pid, err
}

// obey takes the steps that the host says. Its end is the last of them.
func (r *reaper) obey(host *wire) {
	for {
		order := toKeeper{}
		err := host.decoder.Decode(&order)
		if err != nil {
			order.Step = kill
		}
		switch order.Step {
		case terminate:
			r.signal(-r.program, unix.SIGTERM)
			r.signal(-r.program, unix.SIGCONT) // what is stopped would not see it
		case kill:
			killAll(descendants(os.Getpid()))
		default:
		}
		if err != nil {
			return
		}
	}
}

// signal sends a signal to the program, or to its group, unless it has been waited for.
func (r *reaper) signal(to int, sig syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		_ = unix.Kill(to, sig)
	}
}

// reap waits for all that there is, and kills what is left when the program has ended. It returns how that ended.
func (r *reaper) reap() (status unix.WaitStatus) {
	for {
		switch err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil); err {
		case nil:
		case unix.EINTR:
			continue
		default: // there is nothing any more
			slices.Sort(r.left)
			r.left = slices.Compact(r.left) // one that is being killed may be found again
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

// endAs ends this process as another one did.
func endAs(status unix.WaitStatus) {
	if !status.Signaled() {
		syscall.Exit(status.ExitStatus())
	}
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	sig := status.Signal()
	// The runtime handles many signals, and takes some of them for its own faults.
	_ = sigactionOf(sig, &sigaction{}, nil)
	_ = unix.Kill(os.Getpid(), sig)
	<-time.After(time.Second) //nolint:forbidigo // it does not last so long
	syscall.Exit(128 + int(sig))
}

// forkReaped starts a program as the child of a reaper, which has the rights of this process.
func (c *child) forkReaped(what Spec, files []*os.File) error {
	what.ExtraFiles, what.Remove, what.Sockets, what.Data = nil, nil, nil, nil // they are the host's business
	w, about, err := startWithOrder(func(stdin *os.File) (err error) {
		c.exit, err = startHelper(roleOuterReaper, stdin)
		return err
	}, toKeeper{Start: &what, V1: c.v1}, files, 0)
	c.pid, c.wire = about.PID, w
	return err
}

// order tells the reaper of the process to take a step. One that was stopped is woken.
func (c *child) order(s step) {
	_ = c.wire.send(toKeeper{Step: s})
	c.exit.signal(unix.SIGCONT)
}

// lastWord is how long an inner reaper may take to say that all is over once the outer one has ended. It bounds only the wait for one that
// is stopped: of one that has ended the connection has too.
const lastWord = 10 * time.Second

// waitReaped waits for the reaper, which has ended, and returns what it killed after the process had ended.
func (c *child) waitReaped() (left []int, err error) {
	_ = c.wire.send(toKeeper{Step: kill}) // if it was the outer one that was killed
	var last fromKeeper
	_ = c.wire.conn.SetReadDeadline(time.Now().Add(lastWord))
	_ = c.wire.decoder.Decode(&last) // what fails says nothing
	_ = c.wire.conn.Close()
	err = c.reap()
	if last.Ended {
		return last.Left, err
	}
	// It was killed. The process ends with it, and so does the rest by the outer one; only both killed at once leave what is not in its group.
	for pid, s := range allStats() {
		if s.group == c.pid && s.start >= c.since && s.alive() && (procID{pid, s.start}).kill() {
			left = append(left, pid)
		}
	}
	return left, fmt.Errorf("the process that was its parent was ended: %w", err)
}

// children are the processes that this process has started and not waited for. Like the processes they belong to the program.
var children = struct { //nolint:gochecknoglobals // see above
	starting sync.RWMutex // held while a process is started and not yet in started
	mu       sync.Mutex   // guards started
	// started counts them by process ID: the kernel can give the ID of one that was waited for to the next before forgetChild is called.
	started map[int]int
}{started: map[int]int{}}

// startChild calls start and remembers the process that it starts.
func startChild(start func() (*os.Process, error)) (*os.Process, error) {
	children.starting.RLock()
	defer children.starting.RUnlock()
	proc, err := start()
	if err == nil {
		children.mu.Lock()
		children.started[proc.Pid]++
		children.mu.Unlock()
	}
	return proc, err
}

// forgetChild is called when a process has been waited for.
func forgetChild(pid int) {
	children.mu.Lock()
	defer children.mu.Unlock()
	if children.started[pid]--; children.started[pid] == 0 {
		delete(children.started, pid)
	}
}

// reapPause is the time between two searches for adopted processes: each reads all of /proc, and plugins decide how many they leave behind.
const reapPause = 100 * time.Millisecond

// ReapAdopted waits for processes that this process did not start, until ctx ends: if it is the first one of a container, it becomes the
// parent of all that lose theirs. In every other process it does nothing.
// The program must start processes only with a [Group].
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
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // what has gone is what is wanted
		}
	}
}
