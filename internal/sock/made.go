package sock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/systemd"
	"github.com/patchbay-dev/patchbay/plugin"
)

// maxMade is the maximum length in bytes of a name that [Make] gives a socket, without the directory's path in bind.
const maxMade = MaxPath - len("/proc/self/fd/9999999/")

// usualMode is the mode of most sockets.
const usualMode = 0o600

// A Made is the stream socket of a program that is about to be started. The program inherits it and calls [TakeMade]. Until then it has a
// hidden name and does not listen: the process that calls listen is the peer of all clients, and that must be the program.
type Made struct {
	// File is the socket that the program inherits. The caller closes it.
	File *os.File
	// Path is the path at which [Made.Bind] binds it.
	Path string
	path string          // of the program's socket
	id   plugin.SocketID // zero until Bind
}

// Make creates the socket of a program that will serve at path. If the name of path is too long for a hidden name, made is nil, and the
// program must create the socket itself.
func Make(path string) (made *Made, err error) {
	hidden := beside(path, "made")
	if len(filepath.Base(hidden)) > maxMade {
		return nil, nil
	}
	fd, err := socket()
	if err != nil {
		return nil, fmt.Errorf("cannot make socket %s: %w", path, err)
	}
	_ = unix.Fchmod(fd, usualMode) // on Linux, bind uses it for the file; TakeMade checks the mode
	return &Made{File: os.NewFile(uintptr(fd), path), Path: hidden, path: path}, nil
}

// Bind binds the socket to its path. It may be called after the program was started. The error wraps [ErrInUse] if another process has a
// socket at that path.
func (m *Made) Bind() error {
	bind := func(fd int) error { return bindTo(fd, m.Path) }
	err := Control(m.File, bind)
	if errors.Is(err, unix.EADDRINUSE) {
		if err = RemoveMade(m.path); err == nil { // left by a host that was killed
			err = Control(m.File, bind)
		}
	}
	var info Info
	if err == nil {
		info, err = Stat(m.Path)
	}
	if err != nil {
		return fmt.Errorf("cannot make socket %s: %w", m.path, err)
	}
	m.id = info.ID
	return nil
}

// ID returns the identity of the socket, zero before Bind.
func (m *Made) ID() plugin.SocketID { return m.id }

// Remove removes the socket unless a program has taken it. Sockets of other processes stay.
func (m *Made) Remove() error {
	if m.id.IsZero() {
		return nil
	}
	return removeSame(m.Path, m.id)
}

// RemoveMade removes a socket of [Make] for path that no program has taken. The error wraps [ErrInUse] if a process of this network
// namespace still has the socket.
func RemoveMade(path string) error {
	made := beside(path, "made")
	lock, err := acquireSoon(context.Background(), path)
	if err != nil {
		return err
	}
	defer func() { _ = release(lock) }()
	info, err := Stat(made)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case isHeld(info.ID):
		return fmt.Errorf("%w on %s, or is about to: stop it or choose another path", ErrInUse, path)
	}
	return removeSame(made, info.ID)
}

// TakeMade listens on a socket of [Make], sets its mode and renames it to path. It closes the file.
func TakeMade(file *os.File, made, path string, mode fs.FileMode) (*Placed, error) {
	l, err := systemd.Listen(file)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on the socket that the host made for %s: %w", path, err)
	}
	listener, is := l.(*net.UnixListener)
	if !is {
		return nil, errors.Join(fmt.Errorf("the socket that the host made for %s is one of %s", path, l.Addr().Network()), l.Close())
	}
	info, err := Stat(made)
	if err == nil && info.Mode.Perm() != mode { // avoid an unnecessary file event
		err = os.Chmod(made, mode)
	}
	if err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot rename the socket that the host made: %w", err), l.Close())
	}
	return &Placed{UnixListener: listener, path: path, id: info.ID, taken: true}, nil
}
