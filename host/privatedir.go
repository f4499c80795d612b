package host

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

const (
	// maxPath is the longest path of a Unix socket that all systems can connect to.
	maxPath = 103

	dirPrefix  = "patchbay-host-"
	socketName = "host.sock"
)

// privateDir is a directory of mode 0700, with a path that is short enough for a socket in it. While its host lives it is locked, so
// others can tell it from what a host left that was killed.
type privateDir struct {
	path string
	lock *os.File
}

func makePrivateDir() (privateDir, error) {
	parent := tempDir()
	removeStale(parent)
	for {
		// gofail: var hostPrivateDir struct{}
		// return privateDir{}, &os.PathError{Op: "mkdir", Path: parent, Err: os.ErrPermission}
		path, err := os.MkdirTemp(parent, dirPrefix)
		if err != nil {
			return privateDir{}, err
		}
		lock, err := sock.HoldDir(path)
		if err == nil {
			return privateDir{path, lock}, nil
		}
		_ = os.Remove(path)
		// Another host that starts may have looked at it before it was locked.
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, os.ErrNotExist) {
			return privateDir{}, err
		}
	}
}

// remove removes the directory with what is in it.
func (d privateDir) remove() error { return errors.Join(os.RemoveAll(d.path), d.lock.Close()) }

func tempDir() string {
	const random = "4294967295"
	if dir := os.TempDir(); len(filepath.Join(dir, dirPrefix+random, socketName)) <= maxPath {
		return dir
	}
	return "/tmp"
}

// removeStale removes what hosts of this user have left that were killed.
func removeStale(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, dirPrefix+"*")) // the pattern is well-formed
	for _, dir := range dirs {
		lock, err := sock.HoldDir(dir)
		if err != nil {
			continue
		}
		path := filepath.Join(dir, socketName)
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
			_ = os.Remove(path)
		}
		_ = os.Remove(dir) // if it is empty
		_ = lock.Close()
	}
}
