package bench

import (
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long one call to a process may take before the benchmark fails.
const patience = 2 * time.Minute

// None is the argument or the reply of a call that has none.
type None bool

// process is the test binary in another role. Calls go over its standard input and output.
type process struct {
	b      *testing.B
	cmd    *exec.Cmd
	client *rpc.Client
}

// start starts a process. It ends with the benchmark at the latest.
func start(b *testing.B, role string, args ...string) *process {
	b.Helper()
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), exe, args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	return &process{b: b, cmd: cmd, client: rpc.NewClient(pipe{stdout, stdin})}
}

// call calls a method of the process and fails the benchmark if that does not succeed in time.
func (p *process) call(method string, args, reply any) {
	p.b.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case call := <-p.client.Go(method, args, reply, make(chan *rpc.Call, 1)).Done:
		if call.Error != nil {
			p.b.Fatalf("%s(%v): %v", method, args, call.Error)
		}
	case <-timeout.C:
		p.b.Fatalf("%s(%v) has not returned after %v", method, args, patience)
	}
}

// stop ends the process, whose standard input ends, and waits for it.
func (p *process) stop() {
	p.b.Helper()
	if err := errors.Join(p.client.Close(), p.cmd.Wait()); err != nil {
		p.b.Fatal(err)
	}
}

// serve serves calls to a receiver on standard input and output until the input ends.
func serve(receiver any) error {
	server := rpc.NewServer()
	if err := server.Register(receiver); err != nil {
		return fmt.Errorf("cannot serve calls: %w", err)
	}
	server.ServeConn(pipe{os.Stdin, os.Stdout})
	return nil
}

// pipe makes one connection of an input and an output.
type pipe struct {
	io.ReadCloser
	out io.WriteCloser
}

func (p pipe) Write(b []byte) (int, error) { return p.out.Write(b) }

func (p pipe) Close() error { return errors.Join(p.ReadCloser.Close(), p.out.Close()) }

// now is the time in nanoseconds on a clock that all processes of the machine share and nobody sets.
func now() (int64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("cannot read the monotonic clock: %w", err)
	}
	return ts.Nano(), nil
}
