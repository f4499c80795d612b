//go:build unix && !netbsd

package systemd

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func closeOnExec(fd int) { unix.CloseOnExec(fd) }

func listen(fd int) error { return unix.Listen(fd, unix.SOMAXCONN) }

// monotonic returns the assignment that systemd wants beside RELOADING=1, for services of Type=notify-reload.
func monotonic() string {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return ""
	}
	return fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000)
}
