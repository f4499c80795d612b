package handshake

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Introduction is a pipe in which a plugin says who it is before it serves, so that its host need not ask. Of a plugin that has not said
// it by then the host knows no more than of any other. The nil Introduction is that of a plugin that cannot introduce itself.
type Introduction struct {
	mu sync.Mutex
	fd int // what is read; -1 when it is closed
}

// NewIntroduction returns an introduction and the end of its pipe that the plugin inherits, which the caller closes.
func NewIntroduction() (*Introduction, *os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	_ = unix.SetNonblock(fds[0], true) // cannot fail on a pipe
	return &Introduction{fd: fds[0]}, os.NewFile(uintptr(fds[1]), "introduction"), nil
}

// Take returns what the plugin has said by now: its answer to GetInfo, encoded; nil if that is nothing. It closes the pipe, so another call
// returns nil. It does not block.
func (i *Introduction) Take() []byte {
	if i == nil {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.fd < 0 {
		return nil
	}
	said := make([]byte, maxIntroduction)
	n, _ := unix.Read(i.fd, said) // nothing yet is an error, too
	_ = unix.Close(i.fd)
	i.fd = -1
	if n <= 0 {
		return nil
	}
	return said[:n]
}
