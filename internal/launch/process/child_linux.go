package process

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/launch/cgroupfs"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// child is a child of this process, in its own session and, if possible, in its own cgroup.
type child struct {
	group   *Group
	process *Process
	id      uint64   // for the watchdog
	leaf    *cgroup  // nil if it has none
	purpose string   // of its shim; empty if it needs none
	since   uint64   // no process of its tree is older
	wire    *wire    // to its reaper; nil if it has a cgroup
	v1      []string // its cgroups of version 1, which only limit it
	pid     int
	stdin   *os.File
	exit    exit

	mu     sync.Mutex // guards reaped; the process ID cannot be reused while mu is held and reaped is false
	reaped bool
}

func (c *child) start() (err error) {
	spec, guard := &c.process.spec, c.group.platform.guard
	in, out, errs, err := newPipes()
	defer func() {
		if err != nil {
			c.undo(in, out, errs)
		}
	}()
	if err == nil {
		err = c.confine()
	}
	if err != nil {
		return err
	}
	c.since = now()
	early := len(c.v1)+len(spec.Sockets) > 0 || spec.User != nil // a part of what remains exists before the process
	if early {
		guard.start(c.id, c.remains(), spec.Sockets)
	}
	files := slices.Concat([]*os.File{in.read, out.write, errs.write}, spec.ExtraFiles)
	ran, err := c.fork(files)
	limited := isGrouped(spec.Limits)
	if refused := err; refused != nil && !ran && c.leaf != nil && !limited && !errors.Is(refused, fs.ErrNotExist) {
		// The error does not show whether the program or the cgroup was refused, so try without a cgroup.
		_ = c.leaf.remove()
		c.leaf = nil
		if _, err = c.fork(files); err == nil {
			c.group.Logger.Warn("a process could not enter its cgroup and runs without one", "name", spec.Name, "error", refused)
		}
	}
	if err == nil {
		if !early && len(c.remains()) > 0 { // before the input, which may name files to create
			guard.start(c.id, c.remains(), spec.Sockets)
		}
		if err = writeInput(in.write, spec.input); err != nil {
			c.undoFork()
		} else if len(spec.Sockets) > 0 {
			guard.start(c.id, c.remains(), spec.Sockets)
		}
	}
	in.closeRead()
	out.closeWrite()
	errs.closeWrite()
	if err != nil {
		guard.end(c.id)
		return err
	}
	c.stdin, c.process.stdout, c.process.stderr = in.write, out.read, errs.read
	return nil
}

func (c *child) confine() error {
	limits := c.process.spec.Limits
	if !isGrouped(limits) {
		return nil
	}
	system, err := cgroupfs.Self()
	if err != nil {
		return fmt.Errorf("look for cgroups to limit the process: %w", err)
	}
	if limits.Processes > 0 && c.purpose != "" {
		limits.Processes += shimThreads // until limitProcesses
	}
	c.v1, err = confine(system, c.leaf, cgroupName(), limits)
	return err
}

func (c *child) remains() []string { return slices.Concat(c.process.spec.Remove, c.v1) }

// fork starts the program. After an error, nothing runs; ran reports whether the program was started before the error.
func (c *child) fork(files []*os.File) (ran bool, err error) {
	// gofail: var processFork string
	// return false, errors.New(processFork)
	what := c.process.spec
	var before *shim
	if c.purpose != "" {
		if before, err = newShim(&what, len(files)); err != nil {
			return false, err
		}
		defer before.close()
		files = slices.Concat(files, []*os.File{before.peer})
	}
	if c.leaf == nil {
		err = c.forkUnderReaper(what, files)
	} else {
		err = c.forkInCgroup(what, files)
	}
	ran = err == nil
	switch {
	case !ran && before != nil:
		err = fmt.Errorf("execute this program again, as the user of the process, %s: %w", c.purpose, err)
	case !ran:
	case before != nil:
		err = before.execute(c.limitProcesses)
	default:
		err = c.limitProcesses()
	}
	if err != nil {
		c.undoFork()
	}
	return ran, err
}

// undoFork ends the process, if it was started.
func (c *child) undoFork() {
	if c.exit.pid != 0 {
		if c.wire != nil {
			c.sendStep(kill) // the reaper exits when all descendants have exited
		} else {
			c.exit.signal(unix.SIGKILL)
		}
		_, _ = c.exit.wait()
		_ = c.exit.pidfd.Close()
		c.exit = exit{}
	}
	if c.wire != nil {
		_ = c.wire.conn.Close()
		c.wire = nil
	}
}

// forkInCgroup starts a program in the cgroup of the process.
func (c *child) forkInCgroup(what Spec, files []*os.File) error {
	forker, err := c.group.platform.thread(what.NoNewPrivs)
	if err != nil {
		return err
	}
	dir, err := unix.Open(c.leaf.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", c.leaf.dir, err)
	}
	defer unix.Close(dir)
	pidfd := -1
	attr := what.attributes(files)
	attr.Sys.PidFD, attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = &pidfd, true, dir
	forker.do(func() { c.pid, err = startProgram(&what, c.v1, attr) })
	if c.pid != 0 {
		c.exit = newExit(c.pid, pidfd)
	}
	return err
}

// attributes returns the attributes of a program that is started with the given files. It gets its own session, which is also a process
// group and has no terminal.
func (s *Spec) attributes(files []*os.File) *syscall.ProcAttr {
	sys := &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if s.User != nil {
		sys.Credential = &syscall.Credential{Uid: s.User.UID, Gid: s.User.GID}
	}
	fds := make([]uintptr, len(files))
	for i, f := range files {
		fds[i] = f.Fd()
	}
	return &syscall.ProcAttr{Dir: s.Dir, Env: s.Env, Files: fds, Sys: sys}
}

func (c *child) undo(pipes ...pipe) {
	for _, p := range pipes {
		p.close()
	}
	if c.leaf != nil {
		_ = c.leaf.clear(time.Second) // the program may have started others
	}
	_ = removeAll(c.v1, nil, 0)
}

func (c *child) end(s step) {
	switch {
	case s == hangUp:
		_ = c.stdin.Close()
	case s == release:
	case c.wire != nil:
		c.sendStep(s)
	case s == terminate:
		c.signal(unix.SIGTERM)
		c.signal(unix.SIGCONT) // a stopped process would not handle SIGTERM
	default:
		_ = c.leaf.kill()
		c.signal(unix.SIGKILL) // It may have moved to another cgroup.
	}
}

// signalGroup sends a signal to the process group through the pidfd. It fails before Linux 6.9.
func (c *child) signalGroup(sig syscall.Signal) error {
	if c.group.platform.noGroups {
		return unix.EINVAL
	}
	return sock.Control(c.exit.pidfd, func(fd int) error { return unix.PidfdSendSignal(fd, sig, nil, signalGroup) })
}

// signal sends a signal to the process group, unless the process has been waited for.
func (c *child) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaped {
		return
	}
	if c.signalGroup(sig) != nil { // before Linux 6.9
		_ = unix.Kill(-c.pid, sig) // the ID cannot be reused before the wait
	}
}

func (c *child) owns(pid int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.reaped && belongs(pid, c.pid, c.exit.pid, c.leaf)
}

func (c *child) wait() error {
	c.exit.await()
	_ = c.stdin.Close()
	var left []int
	var err error
	if c.wire != nil {
		left, err = c.waitUnderReaper()
	} else {
		left, err = c.waitInCgroup()
	}
	_ = c.exit.pidfd.Close()
	c.clean()
	for _, f := range []*os.File{c.process.stdout, c.process.stderr} {
		if held(f) { // by a process that is being killed, or by another one
			_ = f.SetReadDeadline(time.Now().Add(outputGrace))
		}
	}
	c.group.platform.guard.end(c.id)
	slices.Sort(left)
	if left = slices.Compact(left); len(left) > 0 { // a process that is being killed may be found twice
		c.group.Logger.Warn("killed processes that a process left behind", "name", c.process.spec.Name, "pid", c.pid, "left", left)
		if c.group.Leftover != nil {
			c.group.Leftover(c.process, left)
		}
	}
	return err
}

// waitInCgroup waits for a process in a cgroup, which has ended, and kills and returns its descendants.
func (c *child) waitInCgroup() (left []int, err error) {
	byPidfd := c.signalGroup(0) == nil
	if !byPidfd { // before Linux 6.9; the ID cannot be used after the wait
		left = killAll(descendants(c.pid))
		c.signal(unix.SIGKILL)
	}
	err = c.reap()
	left = append(left, c.sweepLeaf()...)
	if byPidfd {
		// Kill processes that left the cgroup. The ID of a process group is not reused while it has members.
		_ = c.signalGroup(unix.SIGKILL)
	}
	return left, err
}

// clean removes the files and cgroups of the process. If they are busy, because processes are still ending, it retries in the background.
func (c *child) clean() {
	remains, sockets := c.remains(), c.process.spec.Sockets
	if removeAll(remains, sockets, 0) {
		return
	}
	c.group.platform.leaves.Go(func() {
		if !removeAll(remains, sockets, leafGrace) {
			c.group.Logger.Warn("a process in the cgroups of an ended process, or on its socket, does not end",
				"name", c.process.spec.Name, "files", remains)
		}
	})
}

func (c *child) reap() error {
	c.mu.Lock()
	c.reaped = true
	c.mu.Unlock()
	state, err := c.exit.wait()
	if err == nil && !state.Success() {
		err = &exec.ExitError{ProcessState: state}
	}
	return err
}

// sweepLeaf removes the cgroup of a process that has ended. It kills and returns the processes that are left in the cgroup.
func (c *child) sweepLeaf() []int {
	if c.leaf.remove() == nil {
		return nil
	}
	// Skip zombies.
	left := slices.DeleteFunc(c.leaf.procs(), func(pid int) bool {
		s, ok := readStat(pid)
		return !ok || !s.alive()
	})
	_ = c.leaf.kill()
	c.group.platform.leaves.Go(func() {
		if err := c.leaf.clear(leafGrace); err != nil {
			c.group.Logger.Warn("a leftover process does not end", "name", c.process.spec.Name, "error", err)
		}
	})
	return left
}

// held reports whether a process holds the other end of a pipe. It is false if f is closed.
func held(f *os.File) bool {
	held := false
	_ = sock.Control(f, func(fd int) error {
		held = events(fd, unix.POLLHUP)&unix.POLLHUP == 0
		return nil
	})
	return held
}

// leafGrace is how long clear waits for the processes in a cgroup after SIGKILL.
const leafGrace = 5 * time.Second

// thread runs functions on one thread of the operating system. A process gets its parent-death signal when the thread that forked it ends,
// so one thread forks all processes of a [Group] and lives as long as they do.
type thread struct {
	work  chan func()
	ended chan struct{}
}

func newThread() *thread {
	t := &thread{work: make(chan func()), ended: make(chan struct{})}
	go t.run()
	return t
}

func (t *thread) run() {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The main thread never ends, and its attributes appear as those of the whole process. While this goroutine holds it, another
		// goroutine gets another thread.
		elsewhere := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(elsewhere)
			t.serve()
		}()
		<-elsewhere
		runtime.UnlockOSThread()
		return
	}
	t.serve()
}

// serve runs functions on a goroutine that is locked to its thread and never unlocked, so that the thread ends with the goroutine.
func (t *thread) serve() {
	defer close(t.ended)
	resetThread()
	for f := range t.work {
		f()
	}
}

func (t *thread) do(f func()) {
	done := make(chan struct{})
	t.work <- func() { defer close(done); f() }
	<-done
}

// close blocks until the current function has returned and the thread has ended. do must not be called afterwards.
func (t *thread) close() {
	close(t.work)
	<-t.ended
}

// pipe is a pipe between this process and one that is about to start. This process's end is in the runtime's poller, except that of
// standard input, which is written once, and the other end blocks.
type pipe struct{ read, write *os.File }

const none = -1 // of the ends is in the poller

func newPipes() (in, out, errs pipe, err error) {
	if in, err = newPipe(none); err != nil {
		return in, out, errs, err
	}
	if out, err = newPipe(0); err != nil {
		return in, out, errs, err
	}
	errs, err = newPipe(0)
	return in, out, errs, err
}

func newPipe(own int) (pipe, error) {
	// gofail: var processPipe string
	// return pipe{}, fmt.Errorf("make a pipe: %s", processPipe)
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return pipe{}, fmt.Errorf("make a pipe: %w", err)
	}
	if own != none {
		setNonblock(fds[own])
	}
	return pipe{read: os.NewFile(uintptr(fds[0]), "pipe"), write: os.NewFile(uintptr(fds[1]), "pipe")}, nil
}

// writeInput writes the input of a process. It must fit into the pipe, because the process may not read it yet, or never.
func writeInput(w *os.File, input func() ([]byte, error)) error {
	b, err := input()
	if err != nil || len(b) == 0 {
		return err
	}
	// gofail: var processFeed string
	// return fmt.Errorf("write %d bytes for standard input: %s", len(b), processFeed)
	n := 0
	err = sock.Control(w, func(fd int) (err error) {
		setNonblock(fd)
		n, err = unix.Write(fd, b)
		return err
	})
	if n != len(b) {
		return fmt.Errorf("write %d bytes for standard input, of which %d fit: %w", len(b), max(n, 0), cmp.Or(err, error(unix.EAGAIN)))
	}
	return nil
}

func (p pipe) closeRead()  { _ = p.read.Close() }
func (p pipe) closeWrite() { _ = p.write.Close() }

func (p pipe) close() {
	if p.read != nil {
		p.closeRead()
		p.closeWrite()
	}
}

func events(fd int, which int16) int16 {
	p := []unix.PollFd{{Fd: int32(fd), Events: which}}
	for {
		if _, err := unix.Poll(p, 0); err != unix.EINTR {
			return p[0].Revents
		}
	}
}
