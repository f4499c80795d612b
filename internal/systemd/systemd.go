// Package systemd communicates with the service manager that started this process: it takes the sockets that were passed (sd_listen_fds(3))
// and sends notifications (sd_notify(3)). It removes the variables of both from the environment, so that descendants do not use them.
//
// The package does not use D-Bus or manage units. It imports only the standard library and package unix, because plugins use it too.
package systemd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// firstInherited is the first descriptor that systemd passes (SD_LISTEN_FDS_START of sd_listen_fds(3)).
const firstInherited = 3

// Sockets are the sockets that systemd passed to this process.
type Sockets struct {
	names []string

	mu    sync.Mutex
	files []*os.File // nil for a socket that was taken
}

// Inherited reads the protocol of sd_listen_fds(3) once and takes it out of the environment.
var Inherited = sync.OnceValue(func() *Sockets {
	pid, fds, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	if pid != strconv.Itoa(os.Getpid()) {
		return &Sockets{}
	}
	unset("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
	n, err := strconv.Atoi(fds)
	if err != nil || n < 1 || n > 1024 {
		return &Sockets{}
	}
	s := &Sockets{names: make([]string, n), files: make([]*os.File, n)}
	copy(s.names, strings.Split(names, ":"))
	for i := range n {
		unix.CloseOnExec(firstInherited + i)
		s.files[i] = os.NewFile(uintptr(firstInherited+i), s.names[i])
	}
	return s
})

func unset(names ...string) {
	for _, name := range names {
		_ = os.Unsetenv(name)
	}
}

// Names are the names of the sockets (FileDescriptorName=), in order.
func (s *Sockets) Names() []string { return s.names }

// Take returns a listener on the first socket of a name, once. It neither closes the socket for systemd nor removes its file. Without a
// socket of that name it returns nil.
func (s *Sockets) Take(name string) (net.Listener, error) {
	if i := slices.Index(s.names, name); i >= 0 {
		return s.take(i)
	}
	return nil, nil //nolint:nilnil // no socket is not an error
}

// TakeOnly is Take, except that the name of the socket does not matter if only one was passed. It returns an error if there is no such
// socket.
func (s *Sockets) TakeOnly(name string) (net.Listener, error) {
	if len(s.names) == 1 {
		return s.take(0)
	}
	l, err := s.Take(name)
	if l == nil && err == nil {
		err = fmt.Errorf("systemd passed %d sockets, named %q, and none is named %q: set FileDescriptorName= to the plugin's name",
			len(s.names), s.names, name)
	}
	return l, err
}

func (s *Sockets) take(i int) (net.Listener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	file := s.files[i]
	if file == nil {
		return nil, fmt.Errorf("the socket %q that systemd passed was taken already", s.names[i])
	}
	s.files[i] = nil
	l, err := Listen(file)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on the socket %q that systemd passed: %w", s.names[i], err)
	}
	return l, nil
}

// Listen returns a listener on a socket that this process inherited, and closes the file. Closing the listener removes no socket file. The
// kernel reports the process that called listen(2) last as the peer of new connections: this process, not the one that made the socket.
func Listen(file *os.File) (net.Listener, error) {
	_ = unix.Listen(int(file.Fd()), unix.SOMAXCONN) // a socket that cannot listen fails next
	l, err := net.FileListener(file)                // a duplicate
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	if l, ok := l.(*net.UnixListener); ok {
		l.SetUnlinkOnClose(false)
	}
	return l, nil
}

// Notifier notifies the service manager of what the process does. The nil Notifier does nothing. It is safe for concurrent use.
type Notifier struct {
	address  *net.UnixAddr
	watchdog time.Duration
}

// TakeNotifier returns the Notifier that the environment configures, nil without one, and removes it from the environment.
func TakeNotifier() *Notifier {
	n := &Notifier{address: &net.UnixAddr{Name: os.Getenv("NOTIFY_SOCKET"), Net: "unixgram"}}
	watchdog, pid := os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	unset("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
	if n.address.Name == "" {
		return nil
	}
	if usec, err := strconv.ParseInt(watchdog, 10, 64); err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n.watchdog = time.Duration(usec) * time.Microsecond
	}
	return n
}

// Watchdog returns the longest time between two notifications WATCHDOG=1; zero if the manager does not expect them.
func (n *Notifier) Watchdog() time.Duration {
	if n == nil {
		return 0
	}
	return n.watchdog
}

// Notify sends assignments such as READY=1. It blocks while the manager's socket is full, for at most a second.
func (n *Notifier) Notify(assignments ...string) error {
	if n == nil {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, n.address)
	if err == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second)) // cannot fail on a new connection
		_, err = conn.Write([]byte(strings.Join(assignments, "\n")))
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		return fmt.Errorf("cannot notify the service manager: %w", err)
	}
	return nil
}

// Reloading notifies that the process reloads its configuration. The caller sends READY=1 afterwards.
func (n *Notifier) Reloading() error {
	var now unix.Timespec // services with Type=notify-reload must send the time
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return n.Notify("RELOADING=1")
	}
	return n.Notify("RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000))
}
