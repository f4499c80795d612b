package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

const maxTail = 4 << 10

// instance is one run of the plugin's command, and of the driver beside it if there is one.
type instance struct {
	proc    *process.Process
	handle  *os.Process // by which it is signalled and nothing else, whatever has got its number meanwhile
	printed *tail
	reading sync.WaitGroup
	served  time.Time // since when it is known to serve
	driver  *instance // the process that serves what this one registers; nil if that is this one
	// waitedLast is what waited returned last.
	waitedLast time.Duration
}

// waited returns how long its process has waited for a processor, as far as that is known.
func (i *instance) waited() time.Duration {
	if !i.hasEnded() {
		i.waitedLast = max(i.waitedLast, waitedFor(i.proc.PID()))
	}
	return i.waitedLast
}

func newInstance(proc *process.Process, output io.Writer) (*instance, error) {
	i := &instance{proc: proc, printed: &tail{}}
	for _, pipe := range []*os.File{proc.Stdout(), proc.Stderr()} {
		i.reading.Go(func() {
			defer pipe.Close()
			_, _ = io.Copy(io.MultiWriter(i.printed, output), pipe) // it ends with the process
		})
	}
	handle, err := os.FindProcess(proc.PID())
	i.handle = handle
	return i, err
}

func (i *instance) hasEnded() bool {
	select {
	case <-i.proc.Done():
		return true
	default:
		return i.driver != nil && i.driver.hasEnded()
	}
}

// signal sends a signal to the processes. A process that has exited is not an error.
func (i *instance) signal(sig syscall.Signal) error {
	if i.driver != nil {
		if err := i.driver.signal(sig); err != nil {
			return err
		}
	}
	if err := i.handle.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot send the plugin %v: %w", sig, err)
	}
	return nil
}

// await waits for the end of the process that registers and reports whether it came in time.
func (i *instance) await(ctx context.Context, timeout time.Duration) bool {
	pause(ctx, timeout, i.proc.Done())
	return i.hasEnded()
}

// awaitAll waits for the end of all processes and reports whether it came in time.
func (i *instance) awaitAll(ctx context.Context, timeout time.Duration) bool {
	end := time.Now().Add(timeout)
	ended := i.await(ctx, timeout)
	return ended && (i.driver == nil || i.driver.await(ctx, time.Until(end)))
}

func pause(ctx context.Context, d time.Duration, ended <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// settle waits until an instance has served for some time: nothing tells that it has set up all that it needs for an orderly end.
func (i *instance) settle(ctx context.Context, served time.Duration) {
	_ = i.await(ctx, time.Until(i.served.Add(served)))
}

func (i *instance) kill() error {
	i.waited() // which nobody can find out later
	if i.driver != nil {
		if err := i.driver.kill(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // at once
	if err := i.proc.Terminate(ctx, process.Grace{Stdin: -1, Term: -1}); errors.Is(err, process.ErrTimeout) {
		return err
	}
	return nil
}

func (i *instance) clean() bool {
	return i.proc.Err() == nil && (i.driver == nil || i.driver.clean())
}

func (i *instance) end() string {
	if i.driver == nil {
		return i.endOfProcess()
	}
	var how []string
	for who, part := range map[string]*instance{"the driver": i.driver, "the command": i} {
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

func (i *instance) endOfProcess() string {
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

func (i *instance) lastWords() string {
	if said := i.printed.last(); said != "" {
		return "; the command runs, and printed last " + untrusted.Quote(said)
	}
	return "; the command runs and has printed nothing"
}

// tail keeps the end of what is written to it. It is safe for concurrent use.
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
