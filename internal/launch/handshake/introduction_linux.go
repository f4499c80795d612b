package handshake

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Introduction is a pipe to which a plugin writes its identity before it serves, which saves the host the call of GetInfo. A nil
// Introduction is always empty.
type Introduction struct {
	mu sync.Mutex
	fd int // the read end; -1 after it was closed
}

// NewIntroduction returns an introduction, and the write end of its pipe, which the plugin inherits and the caller must close.
func NewIntroduction() (*Introduction, *os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make a pipe: %w", err)
	}
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETFL, unix.O_NONBLOCK) // cannot fail on a pipe
	return &Introduction{fd: fds[0]}, os.NewFile(uintptr(fds[1]), "introduction"), nil
}

// Take returns the plugin's encoded answer to GetInfo, or nil if the plugin has not written it yet. It closes the pipe, so the next call
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
	n, _ := unix.Read(i.fd, said) // fails if the pipe is empty
	_ = unix.Close(i.fd)
	i.fd = -1
	if n <= 0 {
		return nil
	}
	return said[:n]
}
