// Package launch has the defaults of launched plugins, for the configuration and for package launcher. The packages below it start programs
// (process, sealedexec, handshake, cipd, account, cgroupfs), keep them running (machine decides, supervise executes), collect their output
// (pluginlog) and answer at the sockets of plugins in their place (activator).
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
