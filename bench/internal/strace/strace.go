// Package strace counts system calls with the program of that name. It does not count nanosleep, with which the Go runtime's monitor passes
// the time, so that the counts do not depend on how long something takes.
package strace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ErrUnavailable is the error of [Attach] where there is no strace, or no permission to trace.
var ErrUnavailable = errors.New("system calls cannot be traced")

// Trace is strace, attached to a process and to what that starts.
type Trace struct {
	process int
	strace  *exec.Cmd
	output  string
}

// Attach returns when the system calls of a process are traced. It writes them to the directory. The trace ends with the context at the
// latest.
func Attach(ctx context.Context, process int, dir string) (*Trace, error) {
	path, err := exec.LookPath("strace")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	t := &Trace{process: process, output: filepath.Join(dir, fmt.Sprintf("strace.%d", process))}
	t.strace = exec.CommandContext(ctx, path, "-f", "-s", "0", "-e", "trace=!nanosleep,clock_nanosleep", "-e", "signal=none",
		"-o", t.output, "-p", strconv.Itoa(process))
	t.strace.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stderr, err := t.strace.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := t.strace.Start(); err != nil {
		return nil, err
	}
	var said strings.Builder
	for lines := bufio.NewScanner(stderr); lines.Scan(); fmt.Fprintln(&said, lines.Text()) {
		if strings.Contains(lines.Text(), " attached") {
			// It names each process that it attaches to, and waits for a reader.
			go func() {
				for lines.Scan() {
				}
			}()
			return t, nil
		}
	}
	err = fmt.Errorf("strace: %w\n%s", t.strace.Wait(), said.String())
	if strings.Contains(said.String(), "Operation not permitted") {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil, err
}

// Detach ends the trace and returns the system calls of each process. The first is the process that was attached to.
func (t *Trace) Detach() ([]*Calls, error) {
	if err := t.strace.Process.Signal(syscall.SIGINT); err != nil {
		return nil, err
	}
	var ended *exec.ExitError
	if err := t.strace.Wait(); err != nil && !errors.As(err, &ended) {
		return nil, err
	}
	output, err := os.Open(t.output)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	return parse(output, t.process)
}
