// Package process starts programs for a host and makes sure that none of them outlives it: not when the program ends and leaves children
// behind, not when the host is killed with SIGKILL, and not when a descendant left the process group (where a cgroup can be had).
//
// A [Group] belongs to one host. Each [Process] of it is a process group of its own and, where one can be had, a cgroup of its own. The end
// of a process ends everything that it started. A process may also be told to survive its host ([Spec].Survive); a later host adopts it
// ([Group.Adopt]).
//
// It knows nothing of plugins, of what is on standard input and output, or of when to start a process again.
//
// All of it works on Linux. On macOS there is the process group only, and nothing ends processes when the host is killed except that their
// standard input ends; on Windows there is not even the group. What is missing returns an error that wraps [errors.ErrUnsupported].
package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
)

// ErrClosed is returned by [Group.Start] and [Group.Adopt] after [Group.Close] was called.
var ErrClosed = errors.New("the group of processes is closed")

// errReleased is what [Process.Err] returns for a process that survives, once its group is closed.
var errReleased = errors.New("the process goes on without this host")

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
	// Remove lists files and directories of the host itself, as absolute paths, that are removed in this order if the host dies without
	// closing the group.
	Remove []string
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
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil, fmt.Errorf("start %s: %w", spec.Name, ErrClosed)
	}
	g.running.Add(1)
	g.mu.Unlock()

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

// Adopt returns the processes that survived an earlier host with the same [Config].StateDir, and that are from now on this group's. Those
// that have ended since are forgotten. An error names the survivors that another host holds still, and those that
// could not be reached within 3 s; the others are returned with it, and another call tries again.
func (g *Group) Adopt(ctx context.Context) ([]*Process, error) {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil, fmt.Errorf("adopt processes: %w", ErrClosed)
	}
	g.running.Add(1)
	g.mu.Unlock()
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
