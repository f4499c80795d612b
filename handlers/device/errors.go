package device

import "errors"

// The reasons for which methods of a [Handler] fail. Their errors wrap one of them, or that of the context.
var (
	// ErrInvalid means that the request is malformed, whatever the devices are.
	ErrInvalid = errors.New("invalid request")
	// ErrNotFound means that the resource, the device or the allocation is unknown.
	ErrNotFound = errors.New("not found")
	// ErrNotEnough means that fewer devices are free and healthy than wanted.
	ErrNotEnough = errors.New("not enough devices")
	// ErrUnhealthy means that a requested device is not healthy.
	ErrUnhealthy = errors.New("device is not healthy")
	// ErrInUse means that a requested device has another owner.
	ErrInUse = errors.New("device is in use")
	// ErrConflict means that the owner already has an allocation of that resource from a different request.
	ErrConflict = errors.New("allocation is another one")
	// ErrUnavailable means that the plugin is away, or that its list of devices may be out of date.
	ErrUnavailable = errors.New("plugin is not available")
	// ErrRefused means that the plugin refused, did not answer in time or gave an invalid answer.
	ErrRefused = errors.New("plugin refused")
	// ErrClosed means that the handler was closed.
	ErrClosed = errors.New("device handler was closed")
)
