package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

const maxTail = 4 << 10

// Instance is one run of the plugin's command, together with its driver if there is one.
type Instance struct {
	proc    *process.Process
	handle  *os.Process // for signals; never refers to a later process with the same PID
	printed *tail
	reading sync.WaitGroup
	Served  time.Time // when Start found that it serves
	driver  *Instance // the driver that this process registers; nil without one
	// waitedLast is the last result of Waited.
	waitedLast time.Duration
}

// Waited returns how long the process has waited for a processor, as far as that is known; see [WaitedFor].
func (i *Instance) Waited() time.Duration {
	if !i.HasEnded() {
		i.waitedLast = max(i.waitedLast, WaitedFor(i.proc.PID()))
	}
	return i.waitedLast
}

func newInstance(proc *process.Process, output io.Writer) (*Instance, error) {
	i := &Instance{proc: proc, printed: &tail{}}
	for _, pipe := range []*os.File{proc.Stdout(), proc.Stderr()} {
		i.reading.Go(func() {
			defer pipe.Close()
			_, _ = io.Copy(io.MultiWriter(i.printed, output), pipe) // until the process exits
		})
	}
	handle, err := os.FindProcess(proc.PID())
	i.handle = handle
	return i, err
}

// HasEnded reports whether one of the processes has exited.
func (i *Instance) HasEnded() bool {
	select {
	case <-i.proc.Done():
		return true
	default:
		return i.driver != nil && i.driver.HasEnded()
	}
}

// Signal sends a signal to the processes. A process that has exited is not an error.
func (i *Instance) Signal(sig syscall.Signal) error {
	if i.driver != nil {
		if err := i.driver.Signal(sig); err != nil {
			return err
		}
	}
	if err := i.handle.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot send the plugin %v: %w", sig, err)
	}
	return nil
}

// Await waits until the command has exited, and reports whether a process has exited by then.
func (i *Instance) Await(ctx context.Context, timeout time.Duration) bool {
	Pause(ctx, timeout, i.proc.Done())
	return i.HasEnded()
}

// AwaitAll waits until all processes have exited, and reports whether they did so in time.
func (i *Instance) AwaitAll(ctx context.Context, timeout time.Duration) bool {
	end := time.Now().Add(timeout)
	ended := i.Await(ctx, timeout)
	return ended && (i.driver == nil || i.driver.Await(ctx, time.Until(end)))
}

// Pause waits for d, or until ended is closed or ctx ends.
func Pause(ctx context.Context, d time.Duration, ended <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// Settle waits until an instance has served for some time. There is no sign that it has set up everything it needs for an orderly exit.
func (i *Instance) Settle(ctx context.Context, served time.Duration) {
	_ = i.Await(ctx, time.Until(i.Served.Add(served)))
}

// Kill kills the processes and waits until they have exited.
func (i *Instance) Kill() error {
	i.Waited() // the kernel forgets the waiting time when the process has ended
	if i.driver != nil {
		if err := i.driver.Kill(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // without a grace period
	if err := i.proc.Terminate(ctx, process.Grace{Stdin: -1, Term: -1}); errors.Is(err, process.ErrTimeout) {
		return err
	}
	return nil
}

// Clean reports whether the processes, which have exited, did so with status 0.
func (i *Instance) Clean() bool {
	return i.proc.Err() == nil && (i.driver == nil || i.driver.Clean())
}

// End describes how the processes exited, and the last line that they printed.
func (i *Instance) End() string {
	if i.driver == nil {
		return i.endOfProcess()
	}
	var how []string
	for who, part := range map[string]*Instance{"the driver": i.driver, "the command": i} {
		select {
		case <-part.proc.Done():
			how = append(how, who+": "+part.endOfProcess())
		default:
			how = append(how, who+" runs")
		}
	}
	slices.Sort(how)
	return strings.Join(how, "; ")
}

func (i *Instance) endOfProcess() string {
	i.reading.Wait()
	how := "exit status 0"
	if err := i.proc.Err(); err != nil {
		how = err.Error()
	}
	if said := i.printed.last(); said != "" {
		how += ", after it had printed " + untrusted.Quote(said)
	}
	return how
}

func (i *Instance) lastWords() string {
	if said := i.printed.last(); said != "" {
		return "; the command runs, and printed last " + untrusted.Quote(said)
	}
	return "; the command runs and has printed nothing"
}

// tail keeps the last maxTail bytes written to it. It is safe for concurrent use.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-maxTail):]
	return len(p), nil
}

func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(string(t.text))
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}

// WaitedFor returns how long the threads of a process were ready to run without a processor, as Linux counts it (schedstat). It is zero on
// other systems, or if the process has exited.
func WaitedFor(pid int) time.Duration {
	threads, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "schedstat"))
	var sum time.Duration
	for _, thread := range threads {
		text, _ := os.ReadFile(thread)
		if fields := strings.Fields(string(text)); len(fields) > 1 { // running time, waiting time, time slices
			ns, _ := strconv.ParseInt(fields[1], 10, 64)
			sum += time.Duration(ns)
		}
	}
	return sum
}
