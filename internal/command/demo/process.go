package demo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
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

// startProcess starts this program again with other arguments. What it puts among the temporary files is in dir.
func startProcess(dir string, stdout io.Writer, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find this program to start it again: %w", err)
	}
	// No context: Run kills its children, in the order that the demo calls for.
	p := &process{cmd: exec.CommandContext(context.Background(), self, args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "TMPDIR="+dir)
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
