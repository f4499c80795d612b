package integration

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// patience is how long a test waits for what should happen at once before it fails.
	patience = 2 * time.Minute
	// outputLimit is how much output of a process is kept. The sample device plugin writes without end while it stops.
	outputLimit = 1 << 20
)

// process is a running program. It is ended with SIGTERM, at the end of the test at the latest, and has to exit with 0 then.
type process struct {
	t      *testing.T
	name   string
	output *output
	cancel context.CancelFunc
	exited chan struct{}
	cmd    *exec.Cmd // its state may be read after exited is closed
}

// start starts one of the programs in bin with additional environment variables. If the test fails, its output is shown.
func start(t *testing.T, env []string, name string, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{t: t, name: name, output: newOutput(), cancel: cancel, exited: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, filepath.Join(bin, name), args...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout = p.output
	p.cmd.Stderr = p.output
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = patience
	if err := p.cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // stop looks at the exit code; the error says no more than that the process was ended
	}()
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("output of %s:\n%s", name, p.output)
		}
	})
	return p
}

// stop ends the process with SIGTERM, waits for it, and fails the test unless it exits with 0. A second stop does nothing.
func (p *process) stop() {
	p.t.Helper()
	p.cancel()
	<-p.exited
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		p.t.Errorf("%s ended with %s, want exit code 0", p.name, p.cmd.ProcessState)
	}
}

// waitForLine waits until the process has written a line that contains part, and returns the line.
func (p *process) waitForLine(part string) string {
	p.t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		changed := p.output.changed()
		if line, ok := p.output.line(part); ok {
			return line
		}
		select {
		case <-changed:
		case <-p.exited:
			if line, ok := p.output.line(part); ok {
				return line
			}
			p.t.Fatalf("%s ended with %s and has not written %q", p.name, p.cmd.ProcessState, part)
		case <-timeout.C:
			p.t.Fatalf("%s has not written %q within %v", p.name, part, patience)
		}
	}
}

// output keeps the first outputLimit bytes that are written to it. It is safe for concurrent use.
type output struct {
	mu   sync.Mutex
	text []byte
	more chan struct{} // closed at the next write
}

func newOutput() *output { return &output{more: make(chan struct{})} }

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, b[:min(len(b), outputLimit-len(o.text))]...)
	close(o.more)
	o.more = make(chan struct{})
	return len(b), nil
}

// changed returns a channel that is closed when more is written.
func (o *output) changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.more
}

// line returns the first whole line that contains part.
func (o *output) line(part string) (string, bool) {
	for line := range strings.Lines(o.String()) {
		if strings.Contains(line, part) && strings.HasSuffix(line, "\n") {
			return strings.TrimSuffix(line, "\n"), true
		}
	}
	return "", false
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}
