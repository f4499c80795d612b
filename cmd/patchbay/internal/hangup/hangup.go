// Package hangup receives SIGHUP from the beginning of the process, before the packages of the program are initialized: until something
// does, the signal ends the process.
package hangup

import (
	"os"
	"os/signal"
	"syscall"
)

// Signals receives SIGHUP. Several signals that come together are one.
var Signals = receive()

func receive() chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c
}
