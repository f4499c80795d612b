package dynamicplugins

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/plugin"
)

// The errors of a Registry match these with errors.Is. Those of calls on a shared connection are also gRPC statuses, with codes.Unavailable
// unless the cause is that the caller's context ended.
var (
	// ErrInvalid: a required argument is empty.
	ErrInvalid = errors.New("invalid argument")
	// ErrNoDispenser: no dispenser was given for the type.
	ErrNoDispenser = errors.New("no plugin dispenser")
	// ErrNotFound: no such type, name or instance is registered.
	ErrNotFound = errors.New("plugin not found")
	// ErrUnreachable: instances are registered, and all are marked as unreachable. The error is an *UnreachableError.
	ErrUnreachable = errors.New("plugin unreachable")
	// ErrNotConfirmed: the instance was restored from the storage and is not confirmed to be alive yet, or its process is being replaced.
	ErrNotConfirmed = errors.New("restored plugin not confirmed")
	// ErrWrongClient: a dispenser created a client of another type than requested.
	ErrWrongClient = errors.New("wrong type of plugin client")
	// ErrNotLoaded: the state could not be loaded from the storage, so the registry does nothing.
	ErrNotLoaded = errors.New("plugin registry state not loaded")
	// ErrNotSaved: the storage could not save a change, which therefore had no effect.
	ErrNotSaved = errors.New("plugin registry state not saved")
	// ErrShutdown: the registry was shut down.
	ErrShutdown = errors.New("plugin registry was shut down")
)

// An UnreachableError is the error of a plugin all of whose instances are unreachable.
type UnreachableError struct {
	Type, Name string
	AllocID    string // the newest instance
	Reason     error
	Since      time.Time // when the instance became unreachable
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("plugin %s for type %s is unreachable since %s: %v", e.Name, e.Type, e.Since.Format(time.RFC3339), e.Reason)
}

// Is reports whether target is ErrUnreachable.
func (e *UnreachableError) Is(target error) bool { return target == ErrUnreachable }

// Unwrap returns the reason.
func (e *UnreachableError) Unwrap() error { return e.Reason }

// GRPCStatus returns the error as a status with codes.Unavailable.
func (e *UnreachableError) GRPCStatus() *status.Status {
	return status.New(codes.Unavailable, e.Error())
}

// failure is an error with a documented text, which matches a sentinel and may have a cause.
type failure struct {
	text     string
	sentinel error
	cause    error
}

func (f *failure) Error() string {
	if f.cause == nil {
		return f.text
	}
	return f.text + ": " + f.cause.Error()
}

func (f *failure) Is(target error) bool { return target == f.sentinel }

func (f *failure) Unwrap() error { return f.cause }

func (f *failure) GRPCStatus() *status.Status {
	code := codes.Unavailable
	switch {
	case errors.Is(f.sentinel, ErrInvalid):
		code = codes.InvalidArgument
	case errors.Is(f.cause, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(f.cause, context.Canceled):
		code = codes.Canceled
	}
	return status.New(code, f.Error())
}

func invalid(text string) error { return &failure{text: text, sentinel: ErrInvalid} }

// named returns the name of a plugin, or an error if a part is empty; todo is the purpose, for the error.
func named(ptype, name, todo string) (plugin.Name, error) {
	switch {
	case ptype == "":
		return plugin.Name{}, invalid("must specify plugin type to " + todo)
	case name == "":
		return plugin.Name{}, invalid("must specify plugin name to " + todo)
	}
	return plugin.Name{Type: ptype, Name: name}, nil
}

func noType(ptype string) error {
	return &failure{text: "no plugins registered for type: " + ptype, sentinel: ErrNotFound}
}

func noPlugin(k plugin.Name) error {
	return &failure{text: fmt.Sprintf("plugin %s for type %s not found", k.Name, k.Type), sentinel: ErrNotFound}
}

func notConfirmed(k plugin.Name, cause error) error {
	return &failure{
		text: fmt.Sprintf("plugin %s for type %s was restored from the saved state and is not confirmed to be alive yet",
			k.Name, k.Type),
		sentinel: ErrNotConfirmed,
		cause:    cause,
	}
}

func replacementMissing(k plugin.Name, cause error) error {
	return &failure{
		text:     fmt.Sprintf("the process of plugin %s for type %s is being replaced, and the new one is not registered yet", k.Name, k.Type),
		sentinel: ErrNotConfirmed,
		cause:    cause,
	}
}

var errDown error = &failure{text: "plugin registry was shut down", sentinel: ErrShutdown}
