package process

import (
	"errors"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// removeAll removes what [Spec].Remove lists, in this order, and reports whether no busy one is left. A busy one is a cgroup of version 1
// with processes in it, for whose ends it waits at most so long; nothing tells when such a group becomes empty.
func removeAll(paths []string, atMost time.Duration) bool {
	for deadline := time.Now().Add(atMost); ; {
		paths = slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return !errors.Is(removeOne(path), unix.EBUSY) })
		if len(paths) == 0 {
			return true
		}
		if !time.Now().Before(deadline) {
			return false
		}
		const pause = 10 * time.Millisecond
		<-time.After(pause)
	}
}

// removeOne follows no symbolic link on the way: whoever may write to a directory could have it lead to somebody else's files.
func removeOne(path string) error {
	dir, name := filepath.Split(path)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	at, err := unix.Openat2(unix.AT_FDCWD, dir, &how)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	err = unix.Unlinkat(at, name, 0)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) { // which of them depends on the file system
		err = unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	}
	return err
}
