package systemd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Notifier tells the service manager what the process does. The nil Notifier tells nobody. It is safe for concurrent use.
type Notifier struct {
	address  *net.UnixAddr
	watchdog time.Duration
}

// TakeNotifier returns what the environment says of whom to notify, and takes it out of the environment; nil if nobody wants to know.
func TakeNotifier() *Notifier {
	socket := os.Getenv("NOTIFY_SOCKET")
	watchdog, pid := os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name)
	}
	if socket == "" {
		return nil
	}
	n := &Notifier{address: &net.UnixAddr{Name: socket, Net: "unixgram"}}
	if usec, err := strconv.ParseInt(watchdog, 10, 64); err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n.watchdog = time.Duration(usec) * time.Microsecond
	}
	return n
}

// Watchdog returns the time within which the manager wants to hear WATCHDOG=1 again and again; zero if it does not.
func (n *Notifier) Watchdog() time.Duration {
	if n == nil {
		return 0
	}
	return n.watchdog
}

// Notify sends assignments such as READY=1. It blocks for as long as the manager's socket is full, at most a second.
func (n *Notifier) Notify(assignments ...string) error {
	if n == nil {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, n.address)
	if err != nil {
		return fmt.Errorf("cannot notify the service manager: %w", err)
	}
	err = conn.SetWriteDeadline(time.Now().Add(time.Second))
	if err == nil {
		_, err = conn.Write([]byte(strings.Join(assignments, "\n")))
	}
	if err = errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("cannot notify the service manager: %w", err)
	}
	return nil
}

// Reloading says that the process reloads its configuration; READY=1 says that it has.
func (n *Notifier) Reloading() error { return n.Notify("RELOADING=1", monotonic()) }
