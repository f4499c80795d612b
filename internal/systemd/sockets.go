package systemd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
)

// firstInherited is the first descriptor that systemd passes (SD_LISTEN_FDS_START of sd_listen_fds(3)).
const firstInherited = 3

// Sockets are those that systemd passed to this process.
type Sockets struct {
	names []string

	mu    sync.Mutex
	files []*os.File // nil for one that is taken
}

// Inherited reads the protocol of sd_listen_fds(3) once and takes it out of the environment.
var Inherited = sync.OnceValue(func() *Sockets {
	pid, fds, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	if pid != strconv.Itoa(os.Getpid()) {
		return &Sockets{}
	}
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name)
	}
	n, err := strconv.Atoi(fds)
	if err != nil || n < 1 || n > 1024 {
		return &Sockets{}
	}
	s := &Sockets{names: make([]string, n), files: make([]*os.File, n)}
	copy(s.names, strings.Split(names, ":"))
	for i := range n {
		closeOnExec(firstInherited + i)
		s.files[i] = os.NewFile(uintptr(firstInherited+i), s.names[i])
	}
	return s
})

// Names are the names of the sockets (FileDescriptorName=), in order.
func (s *Sockets) Names() []string { return s.names }

// Take returns a listener on the first socket of a name, once. It neither closes the socket for systemd nor removes its file. Without a
// socket of that name it returns nil.
func (s *Sockets) Take(name string) (net.Listener, error) {
	for i := range s.names {
		if s.names[i] == name {
			return s.take(i)
		}
	}
	return nil, nil //nolint:nilnil // no socket is no error
}

// TakeOnly returns a listener as Take does, on the only socket that was passed, whatever its name, or on the one of that name. If there is
// none, the error says so.
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
	l, err := net.FileListener(file) // a duplicate
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("cannot listen on the socket %q that systemd passed: %w", s.names[i], err)
	}
	if unix, ok := l.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false)
	}
	return l, nil
}
