// Package cli implements the patchbay command: its subcommands, flags, output and exit codes.
//
// Commands talk to a running daemon only through package client. Text from plugins is escaped before it is printed, so that it cannot
// control a terminal.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/command"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/console"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/hangup"
)

// Main runs the command in os.Args and returns its exit code. The first SIGINT or SIGTERM cancels the command; after a second one the
// process exits within a second. SIGHUP has the same effect, except for the daemon.
func Main() int {
	// Without a reader, a write to a pipe returns an error instead of killing the process, so that commands can clean up. SIGPIPE is not
	// ignored, because launched plugins would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	cmd, _, _ := newRoot().Find(os.Args[1:])
	ctx, stop := untilSignal(context.Background(), cmd.Name() != runCommand, func() { os.Exit(exitFailed) })
	defer stop()
	return Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// Run runs the command in args, which do not include the name of the program, and returns its exit code: 0 on success, 1 on failure, 2 for
// a wrong command line. An error is printed as one line on stderr. The end of ctx interrupts the command.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	addDefaults(root)
	return report(stderr, root.ExecuteContext(ctx))
}

// grace is the time to clean up after a second signal.
const grace = time.Second

// untilSignal returns a context that is cancelled by the first signal. SIGHUP counts only if endsOnHangup is set. After a second signal and
// the grace, it calls abandon. After stop, SIGINT and SIGTERM have their default effect again, and the goroutine has ended.
func untilSignal(parent context.Context, endsOnHangup bool, abandon func()) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	terminate := make(chan os.Signal, 2)
	signal.Notify(terminate, os.Interrupt, syscall.SIGTERM)
	if endsOnHangup {
		signal.Notify(terminate, syscall.SIGHUP)
		select {
		case <-hangup.Signals: // it arrived before
			cancel()
		default:
		}
	}
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for range cap(terminate) {
			select {
			case <-terminate:
				cancel()
			case <-done:
				return
			}
		}
		deadline := time.AfterFunc(grace, abandon)
		<-done
		deadline.Stop()
	})
	return ctx, func() {
		signal.Stop(terminate)
		close(done)
		watching.Wait()
		cancel()
	}
}

// The exit codes of every command.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// report prints an error as one line and returns the exit code.
func report(stderr io.Writer, err error) int {
	if err == nil || errors.Is(err, syscall.EPIPE) { // the reader of the output has exited, as head does
		return exitDone
	}
	message := oneLine(err)
	if errors.Is(err, context.Canceled) {
		message = "interrupted"
	}
	if i := slices.IndexFunc(hints, func(h hint) bool { return errors.Is(err, h.err) }); i >= 0 && hints[i].text != "" {
		message += "; " + hints[i].text
	}
	fmt.Fprintf(stderr, "patchbay: %s\n", console.Escape(message))
	if _, ok := errors.AsType[command.UsageError](err); ok {
		return exitUsage
	}
	return exitFailed
}

// oneLine returns the text of an error without line breaks.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

type hint struct {
	err  error
	text string
}

// hints are remedies for errors of package client in terms of this program's commands and flags. The first match counts.
var hints = []hint{
	{client.ErrNotRunning, `start a daemon with "patchbay run", or name the control socket of one with --control-socket`},
	{client.ErrDenied, ""}, // its text has a remedy
	{client.ErrPermission, "run the command as root, as the daemon's user, or as a member of the socket's group"},
	{client.ErrDeviceNotFound, `"patchbay devices list" shows all devices`},
	{client.ErrNodeNotFound, `"patchbay fleet nodes" shows all nodes`},
	{client.ErrNotFound, `"patchbay list" shows all plugins`},
	{client.ErrBehind, `"patchbay list" shows the current state`},
}
