package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"

	"connectrpc.com/connect"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

var (
	// ErrNotRunning is wrapped by errors if no daemon serves the control socket, or the daemon stopped during the call.
	ErrNotRunning = errors.New("no daemon is running")
	// ErrPermission is wrapped by errors if the file system or the daemon refuses access to the user. It matches [fs.ErrPermission].
	ErrPermission = fmt.Errorf("the control socket is closed to this user: %w", fs.ErrPermission)
	// ErrDenied is wrapped by the error of a call for which the user does not have the role. The message names the role and how to get it.
	// It matches [ErrPermission].
	ErrDenied = fmt.Errorf("the role of this user does not permit it: %w", ErrPermission)
	// ErrNotFound is wrapped by the error of a call for an unknown plugin. The message comes from the daemon.
	ErrNotFound = errors.New("no such plugin is known")
	// ErrBehind is wrapped by the last error of [Client.Events] if events were lost because they were read too slowly.
	ErrBehind = errors.New("events were lost because they were read too slowly")
)

// errNoPath is the error of a client that was made with an empty path.
var errNoPath = fmt.Errorf("%w: the path of the control socket is empty", ErrNotRunning)

// inWords has the message of one error and matches another.
type inWords struct {
	error
	is error
}

func (e inWords) Unwrap() error { return e.is }

// explain returns the error of a call in the form "cannot <task>: <reason>".
func (c *Client) explain(task string, err error) error {
	return fmt.Errorf("cannot %s: %w", task, c.meaning(err))
}

// meaning returns the reason for the error of a call.
func (c *Client) meaning(err error) error {
	if !connect.IsWireError(err) {
		switch unreached := c.unreached(err); {
		case unreached != nil:
			return unreached
		case isLost(err):
			return fmt.Errorf("%w at control socket %s any more: it went away during the call", ErrNotRunning, c.socketPath)
		case errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("the daemon at control socket %s does not answer in time: %w", c.socketPath, context.DeadlineExceeded)
		case errors.Is(err, context.Canceled):
			return context.Canceled
		}
	}
	detail := err
	if rpcError, ok := errors.AsType[*connect.Error](err); ok && rpcError.Unwrap() != nil {
		detail = rpcError.Unwrap()
	}
	switch code := connect.CodeOf(err); {
	case code == connect.CodePermissionDenied:
		return inWords{detail, ErrDenied}
	case code == connect.CodeNotFound:
		return inWords{detail, ErrNotFound}
	case code == connect.CodeDeadlineExceeded: // the daemon's deadline passed before the client's
		return inWords{detail, context.DeadlineExceeded}
	case code == connect.CodeResourceExhausted:
		return ErrBehind
	case (code == connect.CodeUnavailable || code == connect.CodeCanceled) && connect.IsWireError(err): // by a daemon that stops
		return fmt.Errorf("%w at control socket %s any more: %w", ErrNotRunning, c.socketPath, detail)
	}
	return detail
}

// unreached returns why there is no connection to the control socket, or nil if err has another reason.
func (c *Client) unreached(err error) error {
	switch {
	case errors.Is(err, errNoPath):
		return errNoPath
	case sock.IsGone(err) || sock.IsRefused(err):
		return fmt.Errorf("%w at control socket %s", ErrNotRunning, c.socketPath)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (%s)", ErrPermission, c.socketPath)
	}
	return nil
}

// isLost reports whether an error means that the daemon closed the connection.
func isLost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
