//go:build linux || darwin

package sock

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/systemd"
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
	path string // where the program serves
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

// Bind gives the socket its name. A program may be started already that inherits it.
func (m *Made) Bind() error {
	err := RemoveMade(m.path) // of a host that was killed
	if err == nil {
		err = Control(m.File, func(fd int) error { return bindTo(fd, m.Path) })
	}
	if err != nil {
		return fmt.Errorf("cannot make socket %s: %w", m.path, err)
	}
	return nil
}

// RemoveMade removes a socket of [Make] that no program has taken.
func RemoveMade(path string) error {
	if err := os.Remove(beside(path, "made")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
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
