// Package process starts programs for a host and makes sure that none of them outlives it: not when the program ends and leaves children
// behind, not when the host is killed with SIGKILL, and not when a descendant left the process group (where a cgroup can be had).
//
// A [Group] belongs to one host. Each [Process] of it is a session of its own and, where one can be had, a cgroup of its own. The end
// of a process ends everything that it started. A process may also be told to survive its host ([Spec].Survive); a later host adopts it
// ([Group.Adopt]).
//
// It knows nothing of plugins, of what is on standard input and output, or of when to start a process again.
//
// All of it works on Linux. On macOS there is the process group only, and nothing ends processes when the host is killed except that their
// standard input ends. What is missing returns an error that wraps [errors.ErrUnsupported].
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

// errReleased is what [Process.Err] returns for a process that survives, once its group is closed.
var errReleased = errors.New("the process keeps running without this host")

// noCgroup as [Config].Cgroup means that processes get no cgroup, as in tests.
const noCgroup = "none"

// Config configures a [Group]. Its zero value works.
type Config struct {
	// Logger gets what nobody asked for: processes that were left over, a watchdog that had to be started again. None if nil.
	Logger *slog.Logger
	// Cgroup is the directory of the cgroup (version 2) in which a cgroup for the processes is made. If it is empty, that is the cgroup of
	// this process, and if none can be made there, the processes have none.
	Cgroup string
	// StateDir is the directory in which processes that survive are remembered. It is made with mode 0700 if it is not there. It may be
	// empty if no Spec says Survive.
	StateDir string
	// Leftover is called when a process ended and others that it had started were found alive and were killed. It must not block.
	Leftover func(p *Process, pids []int)
}

// Group starts processes and makes sure that none of them outlives this process, but for those that shall. A host has one. All methods are
// safe for concurrent use.
//
// The first Start also starts the watchdog, a small process that outlives this one by the moment it takes to end the others.
type Group struct {
	cfg      Config
	platform platform

	mu      sync.Mutex // guards what follows, and serialises nothing else
	closed  bool
	procs   map[*Process]struct{}
	running sync.WaitGroup // calls of Start, and one for each process
	end     func() error   // once
}

// NewGroup makes a group. It starts nothing yet and is cheap.
func NewGroup(cfg Config) *Group {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	g := &Group{cfg: cfg, procs: map[*Process]struct{}{}}
	g.end = sync.OnceValue(func() error { return g.platform.close() })
	return g
}

// Start starts a process. It returns as soon as the program is being executed, or with what kept it from that; the error wraps the one of
// the system ([io/fs.ErrNotExist], [io/fs.ErrPermission]). The caller has to read [Process.Stdout] and [Process.Stderr] to their ends and
// to close them.
func (g *Group) Start(spec Spec) (*Process, error) {
	if err := g.enter(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p := &Process{spec: spec, done: make(chan struct{})}
	if len(p.spec.Args) == 0 {
		p.spec.Args = []string{spec.Path}
	}
	if p.spec.Env == nil {
		p.spec.Env = []string{} // nil would mean that of this process
	}
	if err := g.platform.start(g, p); err != nil {
		g.running.Done()
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	g.watch(p)
	return p, nil
}

// Remove lists files and directories of the host itself, as absolute paths, that are removed in this order if the host dies without closing
// the group.
func (g *Group) Remove(paths ...string) { g.platform.remove(paths) }

// Adopt returns the processes that survived an earlier host with the same [Config].StateDir, and that are from now on this group's. Those
// that have ended since are forgotten. An error names the survivors that another host holds still, and those that
// could not be reached within 3 s; the others are returned with it, and another call tries again.
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

// enter counts something for which Close waits, unless that was called.
func (g *Group) enter() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errClosed
	}
	g.running.Add(1)
	return nil
}

// watch waits for the end of a process that has been counted in running.
func (g *Group) watch(p *Process) {
	g.mu.Lock()
	g.procs[p] = struct{}{}
	closed := g.closed
	g.mu.Unlock()
	if closed { // Close has not seen it.
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

// Close terminates all processes but those that survive, as [Process.Terminate] with the default grace does, and waits for their ends. The
// end of the context kills them at once. It returns when everything that the group started has ended, and nil, or says what has not. The
// second call does nothing more.
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
		return err // What still runs needs the watchdog.
	}
	g.running.Wait()
	return g.end()
}

// ErrTimeout is returned by [Process.Terminate] if the process is still there after SIGKILL: it hangs in the kernel. It is still watched.
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

// body is how a process is reached: as a child of this one, or through the one that keeps it.
type body interface {
	// end takes a step towards the end of the process. It does not block. Steps may be repeated, and are nothing after the end.
	end(step)
	// owns reports whether pid is that of the process or a descendant.
	owns(pid int) bool
	// wait blocks until the process has ended and nothing is left of it, and says how it ended.
	wait() error
}

type step int

const (
	hangUp    step = iota // closes its standard input
	terminate             // SIGTERM to the process group
	kill                  // SIGKILL to the whole tree
	release               // lets a process that survives go on without this host
)

// lastStep is what the end of its group means for the process.
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

// Data returns [Spec].Data, also that of a process that was adopted.
func (p *Process) Data() []byte { return p.spec.Data }

// Done is closed when the process has ended. Whatever it had started has been killed and its files are removed by then.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is nil while the process runs, and then says how it ended: nil if with status 0, else an error that unwraps to [os/exec.ExitError],
// or to one like it if it is one that survives its host; another error if such a one goes on.
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

// Stdout is the end of a pipe from which the caller reads what the process writes, to the end, and which he closes. Reads end at the latest
// one second after the process has ended: with [io.EOF], or with [os.ErrDeadlineExceeded] if a process that could not be ended holds the
// other end.
func (p *Process) Stdout() *os.File { return p.stdout }

// Stderr is for standard error what [Process.Stdout] is for standard output.
func (p *Process) Stderr() *os.File { return p.stderr }

// outputGrace is how long after the end of a process its output can still be read when somebody else holds the pipe.
const outputGrace = time.Second

// Owns reports whether pid is that of the process or of one of its descendants, now. It is meant for the credentials of a peer that is
// still connected. After the end of the process nothing is owned.
func (p *Process) Owns(pid int) bool {
	return !p.ended() && p.body.owns(pid)
}

// Terminate ends the process and everything that it started: it closes standard input, sends SIGTERM to the process group, and kills the
// whole tree, each as grace says if the step before did not help. The end of the context kills at once. It waits for the end and returns
// what [Process.Err] returns, or an error that wraps [ErrTimeout]. Calling it again is allowed and can only make the end come sooner.
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

// exitError says how a process that survives its host ended. It is no child of this process, so there is no [os.ProcessState].
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
	// Stdin returns what the program reads first, at most 64 KiB; nil for nothing. It is called once, when the program is already being
	// executed, so that both get ready at the same time; for one that survives, before. Its error ends the program. Standard input then
	// stays open until [Process.Terminate] or until the end of the host.
	Stdin func() ([]byte, error) `json:"-"`
	// ExtraFiles become descriptors 3 and up. They remain the caller's.
	ExtraFiles []*os.File
	// Remove lists files and directories, as absolute paths, that are removed in this order when the process has ended, even if the host is
	// gone. A missing one is not an error. A directory with something else in it stays. No symbolic link is followed on the way (on Linux),
	// so the paths must have none in their directories; see [Resolve].
	Remove []string
	// Sockets tells the sockets that were bound for the process, by their paths in Remove: another socket that is found there stays. Where it
	// has none, a socket stays on which another process accepts. Stdin may add to it.
	Sockets map[string]plugin.SocketID
	// User is whom the process runs as; nil for the user of the host.
	User *User
	// Limits bound what the process and its descendants may use. What cannot be limited on this system is an error of Start.
	Limits plugin.Limits
	// NoNewPrivs keeps the process and its descendants from gaining privileges by executing a program (setuid, file capabilities).
	NoNewPrivs bool
	// Survive lets the process go on when the host dies or closes the group. It needs [Config].StateDir.
	Survive bool
	// Data is kept for a host that adopts the surviving process; see [Process.Data]. Without Survive it has no effect.
	Data []byte
}

// input returns what the program reads first.
func (s *Spec) input() ([]byte, error) {
	if s.Stdin == nil {
		return nil, nil
	}
	return s.Stdin()
}

// User is whom a process runs as. It has no supplementary groups.
type User struct{ UID, GID uint32 }

// Grace says how long [Process.Terminate] waits after each of its steps. A zero field means its default, a negative one skips the wait.
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
