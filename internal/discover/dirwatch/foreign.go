package dirwatch

import (
	"errors"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// errForeign is why a directory is not searched: the file system that is mounted there may not answer, because it is over the network or
// served by another process. A call to the system for a path in it may take forever.
var errForeign = errors.New("its file system may not answer")

// errRemounted is why a directory is not read: something was mounted there, or unmounted, since it was looked at.
var errRemounted = errors.New("what is mounted there has changed")

// localTypes are the file systems that answer without another machine or process.
var localTypes = map[string]bool{
	"ext2": true, "ext3": true, "ext4": true, "xfs": true, "btrfs": true, "f2fs": true, "tmpfs": true, "ramfs": true, "overlay": true,
	"devtmpfs": true, "squashfs": true, "erofs": true, "proc": true, "sysfs": true, "cgroup": true, "cgroup2": true, "zfs": true,
	"bcachefs": true, "vfat": true, "exfat": true, "ntfs3": true, "jfs": true, "nilfs2": true, "reiserfs": true, "iso9660": true, "udf": true,
	"hugetlbfs": true,
}

// lookUp describes what is at a path in d. It never waits for what is mounted there.
func (t *tree) lookUp(d *dir, path string) (sock.Entry, error) {
	e, err := sock.StatEntry(path, true)
	if err == nil && d.silent && !e.IsMountPoint {
		return sock.StatEntry(path, false) // what the kernel knows of another machine's file may be out of date
	}
	return e, err
}

// isForeign reports whether a file system is mounted at a path that may not answer.
func (t *tree) isForeign(path string, e sock.Entry) bool {
	if !e.IsMountPoint || !e.Mode.IsDir() {
		return false
	}
	if d := t.dirs[path]; d != nil && d.mount == e.Mount {
		switch {
		case errors.Is(d.readErr, errForeign):
			return true
		case !d.info.ID.IsZero(): // it was searched
			return false
		}
	}
	return !localTypes[fileSystemAt(path)]
}

// IsForeign reports whether a file system is mounted at a path that may not answer. Below a plugin directory it is not searched.
func IsForeign(path string) bool {
	e, err := sock.StatEntry(path, true)
	return err == nil && new(tree).isForeign(path, e)
}
