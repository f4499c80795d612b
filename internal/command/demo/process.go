package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// process is a child of the demo.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	// ended is closed when the process has ended and was waited for.
	ended chan struct{}
	// stderr is what it said last; to be read when it has ended.
	stderr bytes.Buffer
}

// startProcess starts this program again with other arguments. stdout may be nil.
func startProcess(stdout io.Writer, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find this program to start it again: %w", err)
	}
	// No context: Run kills its children, in the order that the demo calls for.
	p := &process{cmd: exec.CommandContext(context.Background(), self, args...), ended: make(chan struct{})}
	p.cmd.Stdout = stdout
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = time.Second
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s again: %w", self, err)
	}
	go func() {
		defer close(p.ended)
		// How it ended is its own business: most are killed.
		_ = p.cmd.Wait()
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill ends the process like kill -9 and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// stop asks the process to end, by the end of its standard input, and waits until it has.
func (p *process) stop(ctx context.Context) error {
	_ = p.stdin.Close()
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// daemon is a child that runs [Host].
type daemon struct {
	*process
	changed chan struct{} // told of every report and of the end

	mu      sync.Mutex
	reports []report // that nobody waited for yet
	closed  bool     // there will be no more
}

func startDaemon(args ...string) (*daemon, error) {
	r, w := io.Pipe()
	p, err := startProcess(w, args...)
	if err != nil {
		return nil, err
	}
	d := &daemon{process: p, changed: make(chan struct{}, 1)}
	go func() {
		<-p.ended
		_ = w.Close()
	}()
	go d.read(r)
	return d, nil
}

// read takes reports in until the process has ended.
func (d *daemon) read(stdout io.Reader) {
	lines := json.NewDecoder(stdout)
	for closed := false; !closed; {
		var line report
		closed = lines.Decode(&line) != nil
		d.mu.Lock()
		if !closed {
			d.reports = append(d.reports, line)
		}
		d.closed = closed
		d.mu.Unlock()
		select {
		case d.changed <- struct{}{}:
		default:
		}
	}
	_, _ = io.Copy(io.Discard, stdout)
}

// take returns the first report for which is says true, and removes it.
func (d *daemon) take(is func(report) bool) (r report, found, closed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.reports, is)
	if i < 0 {
		return report{}, false, d.closed
	}
	r = d.reports[i]
	d.reports = slices.Delete(d.reports, i, i+1)
	return r, true, false
}

// await waits for a report that no call has returned yet.
func (d *daemon) await(ctx context.Context, is func(report) bool) (report, error) {
	for {
		r, found, closed := d.take(is)
		switch {
		case found:
			return r, nil
		case closed:
			<-d.ended
			return report{}, fmt.Errorf("the daemon has ended: %s", strings.TrimSpace(d.stderr.String()))
		}
		select {
		case <-ctx.Done():
			return report{}, ctx.Err()
		case <-d.changed:
		}
	}
}

// event waits for an event of a plugin.
func (d *daemon) event(ctx context.Context, kind, name string) (report, error) {
	r, err := d.await(ctx, func(r report) bool { return r.Event == kind && r.Name == name })
	if err != nil {
		return r, fmt.Errorf("waited for the event %q of %s: %w", kind, name, err)
	}
	return r, nil
}

// ask makes a request and waits for its answer.
func (d *daemon) ask(ctx context.Context, words ...string) (report, error) {
	request := strings.Join(words, " ")
	if _, err := io.WriteString(d.stdin, request+"\n"); err != nil {
		return report{}, fmt.Errorf("cannot ask the daemon to %s: %w", request, err)
	}
	r, err := d.await(ctx, func(r report) bool { return r.Answer == request })
	return r, errors.Join(err, r.err())
}
