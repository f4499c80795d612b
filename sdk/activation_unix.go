//go:build unix

package sdk

import "golang.org/x/sys/unix"

func closeOnExec(fd int) { unix.CloseOnExec(fd) }
