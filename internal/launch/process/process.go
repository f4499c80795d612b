package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// ErrTimeout is returned by [Process.Terminate] if the process is still there after SIGKILL: it hangs in the kernel. It is still watched.
var ErrTimeout = errors.New("the process has not ended after SIGKILL")

// Process is one process that a [Group] started, or adopted. All methods are safe for concurrent use.
type Process struct {
	spec           Spec
	pid            int
	adopted        bool
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

// Adopted reports whether the process was started by an earlier host.
func (p *Process) Adopted() bool { return p.adopted }

// Done is closed when the process has ended. Whatever it had started has been killed and its files are removed by then.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is nil while the process runs, and then says how it ended: nil if with status 0, else an error that unwraps to [os/exec.ExitError],
// or to [ExitError] if it is one that survives its host; [ErrReleased] if such a one goes on.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
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
	select {
	case <-p.done:
		return false
	default:
		return p.body.owns(pid)
	}
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
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// ExitError says how a process that survives its host ended. It is no child of this process, so there is no [os.ProcessState].
type ExitError struct {
	Code   int            // the exit status, or -1 if it was killed by a signal
	Signal syscall.Signal // the signal that killed it, or 0
}

func (e *ExitError) Error() string {
	if e.Signal != 0 {
		return "signal: " + e.Signal.String()
	}
	return "exit status " + strconv.Itoa(e.Code)
}
