package sdk

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

// inheritance is what systemd passed to this process.
type inheritance struct {
	names []string

	mu    sync.Mutex
	files []*os.File // nil for one that is taken
}

// inheritedSockets reads the protocol of sd_listen_fds(3) once and takes it out of the environment, so that no descendant believes in it.
var inheritedSockets = sync.OnceValue(func() *inheritance {
	pid, fds, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	if pid != strconv.Itoa(os.Getpid()) {
		return &inheritance{}
	}
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name)
	}
	n, err := strconv.Atoi(fds)
	if err != nil || n < 1 || n > 1024 {
		return &inheritance{}
	}
	in := &inheritance{names: make([]string, n), files: make([]*os.File, n)}
	copy(in.names, strings.Split(names, ":"))
	for i := range n {
		closeOnExec(firstInherited + i)
		in.files[i] = os.NewFile(uintptr(firstInherited+i), in.names[i])
	}
	return in
})

// activated reports whether systemd passed sockets to this process.
func activated() bool { return len(inheritedSockets().names) > 0 }

// inherited returns the socket that systemd passed for the plugin: the one of that name (FileDescriptorName=), or the only one.
func inherited(name string) (net.Listener, error) {
	file, err := inheritedSockets().take(name)
	if err != nil {
		return nil, err
	}
	l, err := net.FileListener(file) // a duplicate
	err = errors.Join(err, file.Close())
	if err != nil {
		return nil, fmt.Errorf("cannot listen on the socket that systemd passed: %w", err)
	}
	unix, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("systemd passed a socket of %s %s, want a Unix one: use ListenStream= with a path",
			l.Addr().Network(), l.Addr()), l.Close())
	}
	unix.SetUnlinkOnClose(false)
	return unix, nil
}

// take returns the file that belongs to a plugin. It can be had once.
func (in *inheritance) take(name string) (*os.File, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	at := -1
	for i := range in.names {
		if in.names[i] == name || len(in.names) == 1 {
			at = i
			break
		}
	}
	if at < 0 {
		return nil, fmt.Errorf("systemd passed %d sockets, named %q, and none is named %q: set FileDescriptorName= to the plugin's name",
			len(in.names), in.names, name)
	}
	file := in.files[at]
	if file == nil {
		return nil, fmt.Errorf("the socket %q that systemd passed was taken already", in.names[at])
	}
	in.files[at] = nil
	return file, nil
}
