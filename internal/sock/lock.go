package sock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// acquire takes the lock of the owner of a socket, without blocking.
func acquire(path string) (*os.File, error) {
	// gofail: var sockLock string
	// return nil, fmt.Errorf("cannot listen on %s: open its lock file: %s", path, sockLock)
	name := beside(path, "lock")
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("cannot listen on %s: open its lock file: %w", path, err)
		}
		err = flock(f)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(inUse(path, nil), f.Close())
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("cannot listen on %s: lock %s: %w", path, name, err), f.Close())
		}
		// The last owner may have removed the file between the open and the lock. Then another process may hold the lock of a new one.
		if err = there(f, name); err == nil {
			return f, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("cannot listen on %s: %w", path, err), f.Close())
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// Lock takes the lock of the owner of a path, without blocking. The error wraps [ErrInUse] if another process, or another owner in this
// process, holds it. The lock is on a hidden file next to path that only this user can open.
func Lock(path string) (unlock func() error, err error) {
	f, err := acquire(path)
	if err != nil {
		return nil, err
	}
	return func() error { return release(f) }, nil
}

// there returns fs.ErrNotExist if f is not the file at path.
func there(f *os.File, path string) error {
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err == nil && !os.SameFile(opened, info) {
		return fs.ErrNotExist
	}
	return err
}

// HoldDir locks a directory that this process uses, without blocking. The lock ends when the file is closed or the process ends. The error
// is EWOULDBLOCK if another process holds the lock, [fs.ErrPermission] if the directory belongs to another user, and [fs.ErrNotExist] if it
// is not at this path any more.
func HoldDir(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot lock %s: %w", path, err)
	}
	if err = ours(f); err == nil {
		err = flock(f)
	}
	if err == nil {
		err = there(f, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// HoldTemp creates a directory in parent whose name begins with prefix, and returns its lock, as [HoldDir] does. The Name of the file is
// the path of the directory.
func HoldTemp(parent, prefix string) (*os.File, error) {
	for {
		path, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			return nil, err
		}
		lock, err := HoldDir(path)
		if err == nil {
			return lock, nil
		}
		_ = os.Remove(path)
		// Another process may have called RemoveUnheld before the directory was locked.
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// RemoveUnheld calls remove for each directory in parent that has the prefix and whose lock is free, because its owner was killed.
func RemoveUnheld(parent, prefix string, remove func(path string)) {
	dirs, _ := os.ReadDir(parent) // after an error, nothing is removed
	for _, dir := range dirs {
		if !strings.HasPrefix(dir.Name(), prefix) {
			continue
		}
		if lock, err := HoldDir(filepath.Join(parent, dir.Name())); err == nil {
			remove(lock.Name())
			_ = lock.Close()
		}
	}
}

func ours(f *os.File) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return err
	}
	if int(stat.Uid) != os.Geteuid() {
		return fs.ErrPermission
	}
	return nil
}

// release removes the lock file and releases the lock.
func release(f *os.File) error { return errors.Join(os.Remove(f.Name()), f.Close()) }

func flock(f *os.File) error {
	_, err := uninterrupted(func() (int, error) { return 0, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	return err
}

// uninterrupted repeats a system call that a signal interrupts.
func uninterrupted(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
