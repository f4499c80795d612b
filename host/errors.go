package host

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// ErrTerminated is the error of a plugin process that exited with status 0.
	ErrTerminated = errors.New("terminated with 0 exit code")
	// ErrClosed is wrapped by the errors of a [Host] that is closed.
	ErrClosed = errors.New("the plugin host is closed")
	// ErrNotInitialized is wrapped by the errors of a [Host] before [Host.Initialize].
	ErrNotInitialized = errors.New("the plugin host is not initialized")
)

// Why an admission check has no answer of the plugin. Each of them is a refusal for now: a later check asks again.
var (
	// ErrAborted is wrapped by the error of a check whose plugin terminates: because the admission plugin was closed or, and then
	// [ErrCrashed] is wrapped too, by itself.
	ErrAborted = errors.New("the admission plugin is terminating")
	// ErrCrashed is wrapped by the error of a check whose plugin could not be started, or ended before it answered.
	ErrCrashed error = crashed{}
	// ErrTimeout is wrapped by the error of a check that was not answered in time.
	ErrTimeout = errors.New("the admission plugin has not answered in time")
	// ErrProtocol is wrapped by the error of a check whose plugin speaks another version of the protocol, or breaks it.
	ErrProtocol = errors.New("the admission plugin does not speak the protocol of this host")
	// ErrQueueFull is wrapped by the error of a check that found too many others waiting. Its gRPC code is ResourceExhausted.
	ErrQueueFull = status.Error(codes.ResourceExhausted, "too many admission checks are waiting")
)

// crashed is the type of ErrCrashed, which is an ErrAborted as well.
type crashed struct{}

func (crashed) Error() string { return "the admission plugin ended before it answered" }
func (crashed) Unwrap() error { return ErrAborted }
