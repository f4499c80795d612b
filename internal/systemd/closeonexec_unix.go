//go:build unix

package systemd

import "golang.org/x/sys/unix"

func closeOnExec(fd int) { unix.CloseOnExec(fd) }
