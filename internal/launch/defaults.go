// Package launch has the defaults of launched plugins, which the configuration and package launcher share. It does not launch anything.
package launch

import "time"

// The defaults of a launched plugin, for the configuration and for package launcher.
const (
	DefaultStartTimeout = time.Minute
	DefaultStopTimeout  = 5 * time.Second
	DefaultIdle         = 5 * time.Minute

	DefaultHealthInterval = time.Second
	DefaultHealthTimeout  = 500 * time.Millisecond
	DefaultHealthMisses   = 3

	DefaultMinBackoff    = 500 * time.Millisecond
	DefaultMaxBackoff    = time.Minute
	DefaultRestartLimit  = 10
	DefaultRestartWindow = 10 * time.Minute
)
