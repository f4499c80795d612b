package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/client"
)

// The exit codes of every command.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// usageError says that a command line is wrong.
type usageError struct {
	err error
	// command is the path of the command whose help shows the right usage.
	command string
}

func (e *usageError) Error() string {
	return fmt.Sprintf("%v; see %q", e.err, e.command+" --help")
}

func (e *usageError) Unwrap() error { return e.err }

func wrongUsage(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...), command: cmd.CommandPath()}
}

// report prints an error as one line and returns the exit code for it. Every command ends here.
func report(stderr io.Writer, err error) int {
	if err == nil || errors.Is(err, syscall.EPIPE) { // whoever read the output has seen enough
		return exitDone
	}
	message := err.Error()
	if errors.Is(err, context.Canceled) {
		message = "interrupted"
	}
	if hint := hintFor(err); hint != "" {
		message += "; " + hint
	}
	fmt.Fprintf(stderr, "patchbay: %s\n", escape(strings.ReplaceAll(message, "\n", "; ")))
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	return exitFailed
}

// hints say what to do about errors of package client, which does not know the commands and flags of this program. The first that matches
// counts.
var hints = []struct {
	err  error
	hint string
}{
	{client.ErrNotRunning, `start a daemon with "patchbay run", or name the control socket of one with --control-socket`},
	{client.ErrDenied, ""}, // it says so itself
	{client.ErrPermission, "run the command as root, as the daemon's user, or as a member of the socket's group"},
	{client.ErrDeviceNotFound, `"patchbay devices list" shows what is known`},
	{client.ErrNotFound, `"patchbay list" shows what is known`},
	{client.ErrBehind, `"patchbay list" shows the present state`},
}

func hintFor(err error) string {
	for _, h := range hints {
		if errors.Is(err, h.err) {
			return h.hint
		}
	}
	return ""
}
