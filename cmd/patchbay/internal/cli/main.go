// Package cli is the patchbay command: its subcommands, their flags, what they print and their exit codes.
//
// A command that looks at a running daemon does so through package client only, and prints whatever came from a plugin in a form that
// cannot disturb a terminal. The package holds nothing that a program would want to import; such a program uses packages patchbay, daemon
// and client.
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

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/hangup"
)

// Main runs the command that the arguments of the process name and returns the exit code of the process. The first SIGINT or SIGTERM
// asks the command to end; after a second one the process ends within a second. So does SIGHUP, but for the daemon.
func Main() int {
	// A write to a pipe that nobody reads is an error of the write, so that whoever has to clean up can. It is not ignored, because
	// launched plugins would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
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

type hangupKey struct{}

// endOnHangup makes SIGHUP end the command, as SIGTERM does. Until it is called, the signal waits in [hangup.Signals].
func endOnHangup(ctx context.Context) {
	if end, ok := ctx.Value(hangupKey{}).(func()); ok {
		end()
	}
}

// untilSignal returns a context that ends with the first signal to terminate. A second one calls abandon, a grace later. After stop,
// SIGINT and SIGTERM have their usual effect again and nothing is left running.
func untilSignal(parent context.Context, abandon func()) (_ context.Context, stop func()) {
	ends := make(chan struct{}) // closed when SIGHUP ends the command
	ctx, cancel := context.WithCancel(context.WithValue(parent, hangupKey{}, sync.OnceFunc(func() { close(ends) })))
	// Not the channel of SIGHUP, so that no number of the one keeps the other out.
	terminate := make(chan os.Signal, 2)
	signal.Notify(terminate, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		ends := ends
		var hangups <-chan os.Signal
		for ended := 0; ended < 2; {
			select {
			case <-ends:
				ends, hangups = nil, hangup.Signals
				continue
			case <-hangups:
			case <-terminate:
			case <-done:
				return
			}
			ended++
			cancel()
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

// usageError says that a command line is wrong.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// wrongUsage returns a [usageError] that names the command whose help shows the right usage.
func wrongUsage(cmd *cobra.Command, format string, args ...any) error {
	wrong := fmt.Errorf(format, args...)
	return usageError{fmt.Errorf("%w; see %q", wrong, cmd.CommandPath()+" --help")}
}

// report prints an error as one line and returns the exit code for it. Every command ends here.
func report(stderr io.Writer, err error) int {
	if err == nil || errors.Is(err, syscall.EPIPE) { // whoever read the output has seen enough
		return exitDone
	}
	message := oneLine(err)
	if errors.Is(err, context.Canceled) {
		message = "interrupted"
	}
	if i := slices.IndexFunc(hints, func(h hint) bool { return errors.Is(err, h.err) }); i >= 0 && hints[i].text != "" {
		message += "; " + hints[i].text
	}
	fmt.Fprintf(stderr, "patchbay: %s\n", escape(message))
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitFailed
}

// oneLine returns what an error says, or the errors that it joins.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

type hint struct {
	err  error
	text string
}

// hints say what to do about errors of package client, which does not know the commands and flags of this program. The first that matches
// counts.
var hints = []hint{
	{client.ErrNotRunning, `start a daemon with "patchbay run", or name the control socket of one with --control-socket`},
	{client.ErrDenied, ""}, // it says so itself
	{client.ErrPermission, "run the command as root, as the daemon's user, or as a member of the socket's group"},
	{client.ErrDeviceNotFound, `"patchbay devices list" shows what is known`},
	{client.ErrNodeNotFound, `"patchbay fleet nodes" shows what is known`},
	{client.ErrNotFound, `"patchbay list" shows what is known`},
	{client.ErrBehind, `"patchbay list" shows the present state`},
}
