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

// maxMade is the length in bytes of the longest name that [Make] can give a socket, beside the directory as bind names it.
const maxMade = MaxPath - len("/proc/self/fd/9999999/")

// usualMode is the mode that most programs give their socket.
const usualMode = 0o600

// A Made is the stream socket of a program that is about to be started, which inherits it and calls [TakeMade]. Until then its name is a
// hidden one beside that at which the program serves, and nobody can connect: who listens is the peer of those who do, and that has to be
// the program.
type Made struct {
	// File is what the program inherits. The caller closes it.
	File *os.File
	// Path is where [Made.Bind] has it.
	Path string
	path string          // where the program serves
	id   plugin.SocketID // zero until Bind
}

// Make makes the socket of a program that is to serve at path, without a name. Where the name of path is too long for a hidden one beside
// it, there is none: made is nil, and the program has to make its own.
func Make(path string) (made *Made, err error) {
	hidden := beside(path, "made")
	if len(filepath.Base(hidden)) > maxMade {
		return nil, nil
	}
	fd, err := socket()
	if err != nil {
		return nil, fmt.Errorf("cannot make socket %s: %w", path, err)
	}
	_ = unix.Fchmod(fd, usualMode) // which its name gets on Linux; TakeMade sees what it is
	return &Made{File: os.NewFile(uintptr(fd), path), Path: hidden, path: path}, nil
}

// Bind gives the socket its name. A program may be started already that inherits it. The error wraps [ErrInUse] if another process has a
// socket of that name.
func (m *Made) Bind() error {
	bind := func(fd int) error { return bindTo(fd, m.Path) }
	err := Control(m.File, bind)
	if errors.Is(err, unix.EADDRINUSE) {
		if err = RemoveMade(m.path); err == nil { // of a host that was killed
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

// Remove removes the socket if no program has taken it. Another process's socket stays.
func (m *Made) Remove() error {
	if m.id.IsZero() {
		return nil
	}
	return removeSame(m.Path, m.id)
}

// RemoveMade removes a socket of [Make] for path that no program has taken, and that no process of this network namespace has any more. The
// error wraps [ErrInUse] if one does.
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

// TakeMade listens on a socket of [Make], gives it its mode and brings it from where it was made to path. The file is closed.
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
	if err == nil && info.Mode.Perm() != mode { // who watches the directory hears of each change
		err = os.Chmod(made, mode)
	}
	if err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot bring the socket that the host made to its place: %w", err), l.Close())
	}
	return &Placed{UnixListener: listener, path: path, id: info.ID}, nil
}
