//go:build linux || darwin

package sock

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/patchbay-dev/patchbay/internal/systemd"
)

// maxMade is the length in bytes of the longest name that [Make] can give a socket, beside the directory as bind names it.
const maxMade = MaxPath - len("/proc/self/fd/9999999/")

// Make makes the stream socket of a program that is about to be started, which inherits it and calls [TakeMade]. Until then it is hidden
// beside path, as made says, and nobody can connect: who listens is the peer of those who do, and that has to be the program. Where the
// name of path is too long for a hidden one beside it, there is none: file is nil, and the program has to make its own.
func Make(path string) (file *os.File, made string, err error) {
	made = beside(path, "made")
	if len(filepath.Base(made)) > maxMade {
		return nil, "", nil
	}
	if err := RemoveMade(path); err != nil { // of a host that was killed
		return nil, "", fmt.Errorf("cannot make socket %s: %w", path, err)
	}
	fd, err := socket()
	if err != nil {
		return nil, "", fmt.Errorf("cannot make socket %s: %w", path, err)
	}
	file = os.NewFile(uintptr(fd), path)
	if err := bindTo(fd, made); err != nil {
		return nil, "", errors.Join(fmt.Errorf("cannot make socket %s: %w", path, err), file.Close())
	}
	return file, made, nil
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
	info := Info{}
	if err = os.Chmod(made, mode); err == nil {
		err = os.Rename(made, path)
	}
	if err == nil {
		info, err = Stat(path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot bring the socket that the host made to its place: %w", err), l.Close())
	}
	return &Placed{UnixListener: listener, path: path, id: info.ID}, nil
}
