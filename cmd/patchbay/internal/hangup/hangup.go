// Package hangup receives SIGHUP from the start of the process, before the other packages of the program are initialized. Without a
// receiver, the signal ends the process. The commands decide what the signal does.
package hangup

import (
	"os"
	"os/signal"
	"syscall"
)

// Signals receives SIGHUP. Signals that arrive before one is read are merged.
var Signals = receive()

func receive() chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c
}
