package process

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reaper is the program that is the parent of a process which has no cgroup, and of all that descends from it: what loses its parent, even
// if it left the process group and holds nothing of the process, becomes the reaper's child. So the reaper finds it, and ends it with the
// process or with the host. It ends as the process did, which is how the host, whose child it is, learns that.
type reaper struct {
	mu      sync.Mutex // guards what follows, and the process ID against being given back while it is used
	program int
	over    bool  // the program has been waited for
	left    []int // what was killed after that
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
	sys := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if order.Start.User != nil {
		sys.Credential = &syscall.Credential{Uid: order.Start.User.UID, Gid: order.Start.User.GID}
	}
	attr := &os.ProcAttr{Dir: order.Start.Dir, Env: order.Start.Env, Files: files, Sys: sys}
	newThread().do(func() {
		if order.Start.NoNewPrivs {
			if err = forbidPrivs(); err != nil {
				return
			}
		}
		err = within(order.V1, func() error {
			proc, err := os.StartProcess(order.Start.Path, order.Start.Args, attr)
			if err == nil {
				pid = proc.Pid
			}
			return err
		})
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
			r.mu.Lock()
			if !r.over {
				_ = unix.Kill(-r.program, unix.SIGTERM)
				_ = unix.Kill(-r.program, unix.SIGCONT) // what is stopped would not see it
			}
			r.mu.Unlock()
		case kill:
			killAll(descendants(os.Getpid()))
		default:
		}
		if err != nil {
			return
		}
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
	var byDefault [4]uintptr // struct sigaction of the kernel, with SIG_DFL and an empty mask
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	_ = unix.Kill(os.Getpid(), sig)
	<-time.After(time.Second) //nolint:forbidigo // it does not last so long
	syscall.Exit(128 + int(sig))
}

// program is what is executed, and with what.
type program struct {
	path string
	args []string
	attr *os.ProcAttr
}

// forkReaped starts a program as the child of a reaper, which has the rights of this process.
func (c *child) forkReaped(what program) error {
	start := &Spec{
		Path: what.path, Args: what.args, Env: what.attr.Env, Dir: what.attr.Dir,
		User: c.process.spec.User, NoNewPrivs: c.process.spec.NoNewPrivs,
	}
	w, about, err := summon(func(stdin *os.File) (err error) {
		c.proc, c.exit, err = startHelper(roleReaper, stdin)
		return err
	}, toKeeper{Start: start, V1: c.v1}, what.attr.Files, 0)
	c.pid, c.wire = about.PID, w
	return err
}

// order tells the reaper of the process to take a step. One that was stopped is woken.
func (c *child) order(s step) {
	_ = c.wire.send(toKeeper{Step: s})
	_ = control(c.exit.pidfd, func(fd int) error { return unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0) })
}

// waitReaped waits for the reaper, which has ended, and returns what it killed after the process had ended.
func (c *child) waitReaped() (left []int, err error) {
	var last fromKeeper
	_ = c.wire.conn.SetReadDeadline(time.Now().Add(time.Second))
	_ = c.wire.decoder.Decode(&last) // what fails says nothing
	_ = c.wire.conn.Close()
	err = c.reap()
	if last.Ended {
		return last.Left, err
	}
	// It was killed. The process ends with it, and what is left of its group is killed here.
	for pid, s := range allStats() {
		if s.group == c.pid && s.start >= c.since && s.alive() && (procID{pid, s.start}).kill() {
			left = append(left, pid)
		}
	}
	return left, fmt.Errorf("the process that was its parent was ended: %w", err)
}
