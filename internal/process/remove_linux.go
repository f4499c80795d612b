package process

import (
	"errors"
	"os"
	"slices"
	"strings"
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

func removeOne(path string) error {
	if dir, whole := strings.CutSuffix(path, "/"); whole {
		return os.RemoveAll(dir)
	}
	err := unix.Unlink(path)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) { // which of them depends on the file system
		err = unix.Rmdir(path)
	}
	return err
}
