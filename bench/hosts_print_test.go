package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/bench/internal/launch"
	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/launch/pluginlog"
)

// The reader of the floor has a pipe and a buffer of these sizes, with which it is fastest.
const (
	pipeSize   = 1 << 20
	readerSize = 128 << 10
)

// Print implements [launch.Host]. What is printed is read, and not looked at.
func (bare) Print(program, control string, _ bool) (launch.Output, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, pipeSize); err != nil {
		return nil, err
	}
	cmd := command(program, control)
	cmd.Stderr = w
	if err := errors.Join(cmd.Start(), w.Close()); err != nil {
		return nil, err
	}
	o := &bareOutput{cmd: cmd, drained: make(chan error, 1)}
	go func() {
		defer r.Close()
		buf := make([]byte, readerSize)
		for {
			if _, err := r.Read(buf); err != nil {
				o.drained <- err
				return
			}
		}
	}()
	return o, nil
}

type bareOutput struct {
	cmd     *exec.Cmd
	drained chan error
}

// Drain implements [launch.Output].
func (o *bareOutput) Drain(int64) (handedOn int64, err error) {
	if err := <-o.drained; !errors.Is(err, io.EOF) {
		return 0, err
	}
	return 0, o.cmd.Wait()
}

// Print implements [launch.Host]. What is printed becomes records of a logger that counts them.
func (h socketHost) Print(program, control string, limited bool) (launch.Output, error) {
	records := new(counter)
	const name = "printer"
	rate := 0
	if !limited {
		rate = -1
	}
	log := pluginlog.New(name, records, rate)
	ctx := pluginlog.NewContext(context.Background(), log)
	p, err := h.host.Launch(ctx, host.Spec{Name: name, Args: []string{program, control}})
	return &hostOutput{process: p, log: log, records: records}, err
}

type hostOutput struct {
	process *host.PluginProcess
	log     *pluginlog.Log
	records *counter
}

// Drain implements [launch.Output].
func (o *hostOutput) Drain(lines int64) (handedOn int64, err error) {
	<-o.process.Done()
	if err := o.process.Err(); !errors.Is(err, host.ErrTerminated) {
		return 0, err
	}
	if err := o.log.Close(context.Background()); err != nil {
		return 0, err
	}
	if got := int64(o.log.Stats().Lines); got != lines {
		return 0, fmt.Errorf("%d lines were read, want %d", got, lines)
	}
	return o.records.n.Load(), nil
}

// counter is a [slog.Handler] that counts.
type counter struct{ n atomic.Int64 }

// Enabled implements [slog.Handler].
func (*counter) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements [slog.Handler].
func (c *counter) Handle(context.Context, slog.Record) error {
	c.n.Add(1)
	return nil
}

// WithAttrs implements [slog.Handler].
func (c *counter) WithAttrs([]slog.Attr) slog.Handler { return c }

// WithGroup implements [slog.Handler].
func (c *counter) WithGroup(string) slog.Handler { return c }
