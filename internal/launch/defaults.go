// Package launch has the defaults of launched plugins, so that a plugin in the configuration and one of package launcher mean the same if
// they leave out the same. The packages below it start programs and keep them running.
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
