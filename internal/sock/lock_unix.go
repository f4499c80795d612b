//go:build unix

package sock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// acquire takes the lock that the owner of a socket holds. It does not wait.
func acquire(path string) (*os.File, error) {
	// gofail: var sockLock string
	// return nil, fmt.Errorf("cannot listen on %s: open its lock file: %s", path, sockLock)
	name := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".lock")
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("cannot listen on %s: open its lock file: %w", path, err)
		}
		err = flock(f)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(inUse(path, 0), f.Close())
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("cannot listen on %s: lock %s: %w", path, name, err), f.Close())
		}
		// The last owner may have removed the file between the open and the lock. Then another process may hold the lock of a new one.
		opened, err := f.Stat()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("cannot listen on %s: %w", path, err), f.Close())
		}
		if there, err := os.Lstat(name); err == nil && os.SameFile(opened, there) {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// release removes the lock file and gives the lock up.
func release(f *os.File) error { return errors.Join(os.Remove(f.Name()), f.Close()) }

func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EINTR {
			return err
		}
	}
}
