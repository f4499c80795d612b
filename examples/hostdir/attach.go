//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The ways in which volumes appear at a path.
const (
	attachAuto  = "auto"
	attachMount = "mount"
	attachLink  = "link"
)

// attacher makes the data of a volume appear at a path. All of it may be done again: a crash may have come in between.
type attacher interface {
	// isAt says whether the data is at the path.
	isAt(data, path string, u use) bool
	// add makes it appear there.
	add(data, path string, u use) error
}

// newAttacher returns the attacher of a name. For auto it tries whether mounts are allowed, because capabilities alone do not tell.
func newAttacher(way string, volumes *store) (attacher, error) {
	switch way {
	case attachLink:
		return links{}, nil
	case attachAuto, attachMount:
	default:
		return nil, fmt.Errorf("--attach is %q, want %s, %s or %s", way, attachAuto, attachMount, attachLink)
	}
	err := volumes.locked(context.Background(), func() error {
		tried, err := os.MkdirTemp(filepath.Join(volumes.dir, scratchDir), "try")
		if err != nil {
			return err
		}
		defer func() { _ = os.Remove(tried) }()
		return errors.Join(mount(tried, tried, use{}), detach(tried, tried, use{}))
	})
	if err == nil {
		return mounts{}, nil
	}
	if way == attachMount {
		return nil, fmt.Errorf("cannot mount: %w; run the driver as root with CAP_SYS_ADMIN, or with --attach=link", err)
	}
	return links{}, nil
}

// mounts are bind mounts.
type mounts struct{}

func (mounts) isAt(data, path string, _ use) bool { return same(data, path) }

func (mounts) add(data, path string, u use) error {
	if err := os.Mkdir(path, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return mount(data, path, u)
}

// checkVacant says why nothing may be made to appear at a path: a volume hides nothing, least of all another volume. That it is there
// itself already is no reason.
func checkVacant(data, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case same(data, path):
		return nil
	case info.IsDir():
		entries, err := os.ReadDir(path)
		var stat unix.Statx_t
		err = errors.Join(err, unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &stat))
		if err == nil && (len(entries) > 0 || stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0) {
			return status.Errorf(codes.FailedPrecondition, "%s is not an empty directory, or something is mounted there", path)
		}
		return err
	}
	if target, err := os.Readlink(path); err == nil && target == data {
		return nil
	}
	return status.Errorf(codes.FailedPrecondition, "something else than the volume is at %s", path)
}

// mount binds. What is read-only is so from its first moment on: nobody knows the path before the call is answered.
func mount(data, path string, u use) error {
	if err := unix.Mount(data, path, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind mount", Path: path, Err: err}
	}
	if !u.ReadOnly {
		return nil
	}
	if err := unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return errors.Join(&os.PathError{Op: "remount read-only", Path: path, Err: err}, unmount(path))
	}
	return nil
}

func unmount(path string) error {
	if err := unix.Unmount(path, unix.UMOUNT_NOFOLLOW); err != nil {
		return &os.PathError{Op: "unmount", Path: path, Err: err}
	}
	return nil
}

// links are symbolic links. Staging needs none.
type links struct{}

func (links) isAt(data, path string, u use) bool {
	target, err := os.Readlink(path)
	return u.Staging || err == nil && target == data
}

func (links) add(data, path string, u use) error {
	if u.Staging {
		return nil
	}
	if u.ReadOnly {
		return status.Error(codes.FailedPrecondition, "a symbolic link cannot be read-only; run the driver as root, so that it can mount")
	}
	// Some hosts make the directory although it is the driver's. It goes only if it is empty.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(data, path)
}

// detach undoes what either attacher did, and nothing else: what is not the volume's stays.
func detach(data, path string, u use) error {
	if same(data, path) {
		if err := unmount(path); err != nil {
			return err
		}
	}
	if u.Staging {
		return nil // the directory is the host's
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	target, _ := os.Readlink(path) // empty if it is no link
	if !info.IsDir() && target != data {
		return status.Errorf(codes.FailedPrecondition, "what is at %s is not the volume; remove it by hand", path)
	}
	return os.Remove(path) // of a directory, only one that is empty
}

// same says whether both paths lead to one directory, as they do after a bind mount.
func same(data, path string) bool {
	d, err := os.Lstat(data)
	if err != nil {
		return false
	}
	p, err := os.Lstat(path)
	return err == nil && os.SameFile(d, p)
}
