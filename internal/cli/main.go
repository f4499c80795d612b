package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// Main runs the command that the arguments of the process name and returns the exit code of the process. The first SIGINT, SIGTERM or
// SIGHUP asks the command to end; after a second one the process ends within a second.
func Main() int {
	// A write to a pipe that nobody reads is an error of the write, so that whoever has to clean up can.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := untilSignal(context.Background(), func() { os.Exit(exitFailed) })
	defer stop()
	return Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// Run runs the command that the arguments name, without the name of the program, and returns its exit code: 0 if it did what was asked,
// 1 if it failed, 2 if it was used wrongly. A failure is one line on stderr. The end of ctx is what an interrupt is to the command.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return report(stderr, root.ExecuteContext(ctx))
}

// grace is what a second signal leaves a command to clean up, which mostly takes some milliseconds.
const grace = time.Second

// untilSignal returns a context that ends with the first signal to terminate. A second one calls abandon, a grace later. After stop,
// signals have their usual effect again and nothing is left running.
func untilSignal(parent context.Context, abandon func()) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for _, act := range []func(){cancel, func() {}} {
			select {
			case <-signals:
				act()
			case <-done:
				return
			}
		}
		deadline := time.NewTimer(grace)
		defer deadline.Stop()
		select {
		case <-deadline.C:
			abandon()
		case <-done:
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		watching.Wait()
		cancel()
	}
}
