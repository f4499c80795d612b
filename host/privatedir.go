package host

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

const (
	// maxPath is the longest path of a Unix socket that all systems can connect to.
	maxPath = 103

	dirPrefix  = "patchbay-host-"
	socketName = "host.sock"

	// minStale is the age below which a directory may be one in which nobody serves yet.
	minStale = time.Minute
)

// privateDir makes a directory of mode 0700 whose path is short enough for a socket in it.
func privateDir() (string, error) {
	parent := tempDir()
	removeStale(parent, time.Now().Add(-minStale))
	// gofail: var hostPrivateDir struct{}
	// return "", &os.PathError{Op: "mkdir", Path: parent, Err: os.ErrPermission}
	return os.MkdirTemp(parent, dirPrefix)
}

func tempDir() string {
	const random = "4294967295"
	if dir := os.TempDir(); len(filepath.Join(dir, dirPrefix+random, socketName)) <= maxPath {
		return dir
	}
	return "/tmp"
}

// removeStale removes what hosts have left that were killed. What cannot be removed is somebody else's.
func removeStale(parent string, before time.Time) {
	dirs, _ := filepath.Glob(filepath.Join(parent, dirPrefix+"*")) // the pattern is well-formed
	for _, dir := range dirs {
		if info, err := os.Lstat(dir); err != nil || !info.IsDir() || info.ModTime().After(before) {
			continue
		}
		path := filepath.Join(dir, socketName)
		if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
			if _, err := sock.Probe(context.Background(), path); !sock.IsRefused(err) {
				continue
			}
			_ = os.Remove(path)
		}
		_ = os.Remove(dir) // if it is empty
	}
}
