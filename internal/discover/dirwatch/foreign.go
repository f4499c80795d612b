package dirwatch

import (
	"errors"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// errForeign means that a directory is not searched, because a network file system or one in user space is mounted there. Such a file
// system could block system calls forever.
var errForeign = errors.New("its file system may not answer")

// errRemounted means that a file system was mounted or unmounted at a directory since the last check.
var errRemounted = errors.New("the file system that is mounted there has changed")

// localTypes are the types of file systems that the kernel implements alone, without another machine or process.
var localTypes = map[string]bool{
	"ext2": true, "ext3": true, "ext4": true, "xfs": true, "btrfs": true, "f2fs": true, "tmpfs": true, "ramfs": true, "overlay": true,
	"devtmpfs": true, "squashfs": true, "erofs": true, "proc": true, "sysfs": true, "cgroup": true, "cgroup2": true, "zfs": true,
	"bcachefs": true, "vfat": true, "exfat": true, "ntfs3": true, "jfs": true, "nilfs2": true, "reiserfs": true, "iso9660": true, "udf": true,
	"hugetlbfs": true,
}

// lookUp returns the entry at a path in d. It never waits for a file system that is mounted there.
func (t *tree) lookUp(d *dir, path string) (sock.Entry, error) {
	e, err := sock.StatEntry(path, true)
	if err == nil && d.missesEvents && !e.IsMountPoint {
		return sock.StatEntry(path, false) // the kernel's attribute cache may be out of date for a remote file system
	}
	return e, err
}

// isForeign reports whether a network file system, or one in user space, is mounted at path.
func (t *tree) isForeign(path string, e sock.Entry) bool {
	if !e.IsMountPoint || !e.Mode.IsDir() {
		return false
	}
	if d := t.dirs[path]; d != nil && d.mount == e.Mount {
		switch {
		case errors.Is(d.readErr, errForeign):
			return true
		case !d.info.ID.IsZero(): // it was searched before
			return false
		}
	}
	return !localTypes[fileSystemAt(path)]
}

// IsForeign reports whether a network file system, or one in user space, is mounted at path. The watcher does not search such a file system
// below a root.
func IsForeign(path string) bool {
	e, err := sock.StatEntry(path, true)
	return err == nil && new(tree).isForeign(path, e)
}
