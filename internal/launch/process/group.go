// Package process starts programs for a host and ensures that no process outlives the host: neither children that a program leaves behind,
// nor any process after the host was killed with SIGKILL, nor descendants that left the process group (if cgroups are available).
//
// A [Group] belongs to one host. Each of its processes has its own session and, if possible, its own cgroup. When a [Process] ends, all its
// descendants are killed. With [Spec].Survive, a process survives its host, and a later host adopts it ([Group.Adopt]).
//
// On macOS there are only process groups, and only the end of standard input tells processes that the host was killed. Functions that are
// not available return an error that wraps [errors.ErrUnsupported].
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// errClosed is returned by [Group.Start] and [Group.Adopt] after [Group.Close] was called.
var errClosed = errors.New("the group of processes is closed")

// errReleased is returned by [Process.Err] for a surviving process after its group was closed.
var errReleased = errors.New("the process keeps running without this host")

// noCgroup as [Group].Cgroup disables cgroups, for tests.
const noCgroup = "none"

// Group starts processes and ensures that they do not outlive this process, except those with [Spec].Survive. A host has one Group. Its
// zero value works; the exported fields are set before the first call. All methods are safe for concurrent use.
//
// The first Start also starts the watchdog, a small process that ends the others when this process has ended.
type Group struct {
	// Logger logs killed descendants and restarts of the watchdog. Nil for no log.
	Logger *slog.Logger
	// Cgroup is the directory of the cgroup (version 2) in which the group creates its own. If it is empty, that is the cgroup of this
	// process, and if none can be created there, the processes have no cgroups.
	Cgroup string
	// StateDir is the directory with the sockets of surviving processes. It is created with mode 0700 if necessary. It may be empty if no
	// process survives.
	StateDir string
	// Leftover is called after the descendants of a process that ended were killed. It must not block. It is a function because only the host
	// can name the plugin in an event.
	Leftover func(p *Process, pids []int)

	platform platform
	running  sync.WaitGroup // calls of Start, and one for each process
	end      sync.Once      // closes platform
	endErr   error

	mu     sync.Mutex // guards the fields below
	closed bool
	procs  map[*Process]struct{}
}

// Start starts a process. It returns when the program is being executed. An error wraps that of the system ([io/fs.ErrNotExist],
// [io/fs.ErrPermission]). The caller must read [Process.Stdout] and [Process.Stderr] to their ends and close them.
func (g *Group) Start(spec Spec) (*Process, error) {
	if err := g.enter(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p := &Process{spec: spec, done: make(chan struct{})}
	if len(p.spec.Args) == 0 {
		p.spec.Args = []string{spec.Path}
	}
	if p.spec.Env == nil {
		p.spec.Env = []string{} // nil would mean the environment of this process
	}
	if err := g.platform.start(g, p); err != nil {
		g.running.Done()
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	g.watch(p)
	return p, nil
}

// Remove adds files and directories of the host, as absolute paths. The watchdog removes them in this order if the host ends without
// closing the group.
func (g *Group) Remove(paths ...string) { g.platform.remove(paths) }

// Adopt takes over the processes that survived an earlier host with the same [Group].StateDir and have not ended. An error names survivors
// that another host still holds, and those that could not be reached within 3 s. The others are returned together with the error. Another
// call tries again.
func (g *Group) Adopt(ctx context.Context) ([]*Process, error) {
	if err := g.enter(); err != nil {
		return nil, fmt.Errorf("adopt processes: %w", err)
	}
	defer g.running.Done()

	procs, err := g.platform.adopt(ctx, g)
	for _, p := range procs {
		g.running.Add(1)
		g.watch(p)
	}
	if err != nil {
		err = fmt.Errorf("adopt processes: %w", err)
	}
	return procs, err
}

// enter adds one to running, for which Close waits. It fails after Close was called.
func (g *Group) enter() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errClosed
	}
	if g.procs == nil { // the first call
		g.procs = map[*Process]struct{}{}
		g.Logger = cmp.Or(g.Logger, slog.New(slog.DiscardHandler))
	}
	g.running.Add(1)
	return nil
}

// watch waits in the background for the end of a process that is counted in running.
func (g *Group) watch(p *Process) {
	g.mu.Lock()
	g.procs[p] = struct{}{}
	closed := g.closed
	g.mu.Unlock()
	if closed { // Close did not find it in procs
		p.body.end(p.lastStep())
	}
	go func() {
		defer g.running.Done()
		p.err = p.body.wait()
		g.mu.Lock()
		delete(g.procs, p)
		g.mu.Unlock()
		close(p.done)
	}()
}

// Close terminates all processes except surviving ones, as [Process.Terminate] with the default grace does, and blocks until they have
// ended. When ctx is done, they are killed immediately. An error names processes that have not ended. Further calls have no effect.
func (g *Group) Close(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	procs := slices.Collect(maps.Keys(g.procs))
	g.mu.Unlock()

	errs := make([]error, len(procs))
	var closing sync.WaitGroup
	for i, p := range procs {
		if p.lastStep() == release {
			p.body.end(release)
			continue
		}
		closing.Go(func() {
			if err := p.Terminate(ctx, Grace{}); errors.Is(err, ErrTimeout) {
				errs[i] = err
			}
		})
	}
	closing.Wait()
	if err := errors.Join(errs...); err != nil {
		return err // the watchdog is still needed
	}
	g.running.Wait()
	g.end.Do(func() { g.endErr = g.platform.close() })
	return g.endErr
}

// ErrTimeout is returned by [Process.Terminate] if the process has not ended after SIGKILL, because it hangs in the kernel. [Process.Done]
// is still closed when it ends.
var ErrTimeout = errors.New("the process has not ended after SIGKILL")

// Process is one process that a [Group] started, or adopted. All methods are safe for concurrent use.
type Process struct {
	spec           Spec
	pid            int
	stdout, stderr *os.File
	body           body

	term sync.Once
	done chan struct{}
	err  error // set before done is closed
}

// body controls a process: a child of this process, or a survivor through its keeper.
type body interface {
	// end takes a step towards the end of the process. It does not block. Steps may be repeated, and have no effect after the end.
	end(step)
	// owns reports whether pid is the process or a descendant.
	owns(pid int) bool
	// wait blocks until the process and its descendants have ended, and returns the exit error of the process.
	wait() error
}

type step int

const (
	hangUp    step = iota // closes its standard input
	terminate             // SIGTERM to the process group
	kill                  // SIGKILL to the whole tree
	release               // leaves a surviving process without a host
)

// lastStep returns the step for the process when its group is closed.
func (p *Process) lastStep() step {
	if p.spec.Survive {
		return release
	}
	return kill
}

// PID returns the process ID. It may belong to another process when this one has ended.
func (p *Process) PID() int { return p.pid }

// Name returns [Spec].Name.
func (p *Process) Name() string { return p.spec.Name }

// Data returns [Spec].Data, also for an adopted process.
func (p *Process) Data() []byte { return p.spec.Data }

// Done is closed when the process has ended, its descendants have been killed and its files have been removed.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns nil while the process runs and if it exited with status 0. Otherwise the error unwraps to [os/exec.ExitError] or, for a
// surviving process, is a similar one. If a surviving process runs on without this host, it is another error.
func (p *Process) Err() error {
	if p.ended() {
		return p.err
	}
	return nil
}

func (p *Process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Stdout returns a pipe with the standard output of the process. The caller must read it to the end and close it. Reads end within a second
// after the process has ended: with [io.EOF], or with [os.ErrDeadlineExceeded] if another process holds the other end.
func (p *Process) Stdout() *os.File { return p.stdout }

// Stderr returns a pipe with the standard error of the process; see [Process.Stdout].
func (p *Process) Stderr() *os.File { return p.stderr }

// outputGrace is how long the output can be read after the end of a process if another process holds the pipe.
const outputGrace = time.Second

// Owns reports whether pid is the process or one of its descendants. It is meant for the credentials of a peer that is still connected.
// After the end of the process it returns false.
func (p *Process) Owns(pid int) bool {
	return !p.ended() && p.body.owns(pid)
}

// Terminate ends the process and its descendants: it closes standard input, sends SIGTERM to the process group, and kills the whole tree,
// with the pauses of grace. When ctx is done, it kills the tree immediately. It blocks until the process has ended and returns
// [Process.Err], or an error that wraps [ErrTimeout]. It may be called again, to end the process sooner.
func (p *Process) Terminate(ctx context.Context, grace Grace) error {
	grace = grace.orDefault()
	p.body.end(hangUp)
	if p.await(ctx, grace.Stdin) {
		return p.err
	}
	if ctx.Err() == nil {
		p.term.Do(func() { p.body.end(terminate) })
		if p.await(ctx, grace.Term) {
			return p.err
		}
	}
	p.body.end(kill)
	if p.await(context.WithoutCancel(ctx), grace.Kill) {
		return p.err
	}
	return fmt.Errorf("terminate %s (process %d): %w", p.spec.Name, p.pid, ErrTimeout)
}

// await reports whether the process ends before d has passed or ctx is done.
func (p *Process) await(ctx context.Context, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	select {
	case <-p.done:
	case <-ctx.Done():
	}
	return p.ended()
}

// exitError is the exit error of a surviving process. It is not a child of this process, so it has no [os.ProcessState].
type exitError struct {
	Code   int            // the exit status, or -1 if it was killed by a signal
	Signal syscall.Signal // the signal that killed it, or 0
}

func (e *exitError) Error() string {
	if e.Signal != 0 {
		return "signal: " + e.Signal.String()
	}
	return "exit status " + strconv.Itoa(e.Code)
}

// Spec describes a process to start.
type Spec struct {
	// Name is for logs and errors, and identifies a surviving process to a later host. It is not used in paths.
	Name string
	// Path is the program to execute; PATH is not searched. An open program can be started as /proc/self/fd/N, where N is 3 plus its index
	// in ExtraFiles.
	Path string
	// Args are the arguments, beginning with the name of the program; Path alone if empty.
	Args []string
	// Env is the whole environment. Nothing is inherited or added.
	Env []string
	// Dir is the working directory; that of the host if empty.
	Dir string
	// Stdin returns the input of the program, at most 64 KiB; nil for none. It is called once, while the program starts, or before the
	// start of a surviving process. Its error ends the program. Standard input then stays open until [Process.Terminate] or the end of the
	// host.
	Stdin func() ([]byte, error) `json:"-"`
	// ExtraFiles become descriptors 3 and up. The caller keeps its own descriptors and closes them.
	ExtraFiles []*os.File
	// Remove lists files and directories, as absolute paths, that are removed in this order when the process has ended, even if the host
	// has ended. Missing files are ignored. A directory that is not empty stays. On Linux, symbolic links in the directories are not
	// followed; see [Resolve].
	Remove []string
	// Sockets are the sockets that were bound for the process, by their paths in Remove. Another socket at such a path stays. If a path has
	// no entry, a socket on which another process accepts stays. Stdin may add entries.
	Sockets map[string]plugin.SocketID
	// User is the user of the process; nil for the user of the host.
	User *User
	// Limits bound the resources of the process and its descendants. Start fails if this system cannot enforce a limit.
	Limits plugin.Limits
	// NoNewPrivs prevents the process and its descendants from gaining privileges by executing a program (setuid, file capabilities).
	NoNewPrivs bool
	// Survive keeps the process running when the host ends or closes the group. It needs [Group].StateDir.
	Survive bool
	// Data is kept for a host that adopts a surviving process; see [Process.Data].
	Data []byte
}

// input returns the input of the program.
func (s *Spec) input() ([]byte, error) {
	if s.Stdin == nil {
		return nil, nil
	}
	return s.Stdin()
}

// User is the user of a process, without supplementary groups.
type User struct{ UID, GID uint32 }

// Grace has the pauses of [Process.Terminate]. A zero field means its default, a negative one no pause.
type Grace struct {
	Stdin time.Duration // after standard input was closed, before SIGTERM; 2 s by default
	Term  time.Duration // after SIGTERM, before SIGKILL; 3 s by default, so that a plugin has 5 s in all
	Kill  time.Duration // after SIGKILL, before Terminate gives up waiting; 1 s by default
}

func (g Grace) orDefault() Grace {
	return Grace{
		Stdin: max(0, cmp.Or(g.Stdin, 2*time.Second)),
		Term:  max(0, cmp.Or(g.Term, 3*time.Second)),
		Kill:  max(0, cmp.Or(g.Kill, time.Second)),
	}
}

// Resolve returns the absolute path without symbolic links in its directory, as far as that exists.
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
