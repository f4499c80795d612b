//go:build !linux && !darwin

package process

import (
	"os"
	"syscall"
)

func ownGroup() *syscall.SysProcAttr { return nil }

// signalOwnGroup kills the process; there is no asking it, and no group.
func signalOwnGroup(proc *os.Process, _ bool) { _ = proc.Kill() }

// awaitExit reports whether it waited for the end, which it cannot.
func awaitExit(*os.Process) bool { return false }
