package sdk

import (
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/sdk/internal/launched"
)

var (
	// ErrInUse is wrapped by the error of [Serve] if somebody else serves at the plugin's path: an older instance without
	// [Plugin.TakeOver], or another plugin.
	ErrInUse = sock.ErrInUse
	// ErrNotLaunched is wrapped by the errors of what needs a host if no host launched this process.
	ErrNotLaunched = launched.ErrNotLaunched
)

// RefusedError is returned by [Serve] if a host refused the plugin and that ended it.
type RefusedError struct {
	// Reason is what the host said.
	Reason string
}

func (e *RefusedError) Error() string { return "the host refused it: " + e.Reason }
