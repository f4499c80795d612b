package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay/internal/foreign"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
)

// maxTail is how much of a plugin's output is kept for the results.
const maxTail = 4 << 10

// instance is one run of the plugin's command.
type instance struct {
	proc    *process.Process
	handle  *os.Process // by which it is signalled and nothing else, whatever has got its number meanwhile
	printed *tail
	reading sync.WaitGroup
	served  time.Time // since when it is known to serve
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
		return false
	}
}

// signal sends a signal to the process. That it has ended is no error.
func (i *instance) signal(sig syscall.Signal) error {
	if i.hasEnded() {
		return nil
	}
	if err := i.handle.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot send the plugin %v: %w", sig, err)
	}
	return nil
}

// await waits for the end of the process and reports whether it came in time.
func (i *instance) await(ctx context.Context, timeout time.Duration) bool {
	pause(ctx, timeout, i.proc.Done())
	return i.hasEnded()
}

// pause waits for some time, or until ctx ends or ended is closed.
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

// kill ends the process, and what it started, and waits for the end.
func (i *instance) kill() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // at once
	if err := i.proc.Terminate(ctx, process.Grace{Stdin: -1, Term: -1}); errors.Is(err, process.ErrTimeout) {
		return err
	}
	return nil
}

// end says how the process ended and what it printed last.
func (i *instance) end() string {
	i.reading.Wait()
	how := "exit status 0"
	if err := i.proc.Err(); err != nil {
		how = err.Error()
	}
	if said := i.printed.last(); said != "" {
		how += ", after it had printed " + foreign.Quote(said)
	}
	return how
}

// lastWords says what a running instance printed last.
func (i *instance) lastWords() string {
	if said := i.printed.last(); said != "" {
		return "; the command runs, and printed last " + foreign.Quote(said)
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

// last returns the last line that is not empty.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(string(t.text))
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}
