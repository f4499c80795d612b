package dirwatch

import "golang.org/x/sys/unix"

// tells reports whether the file system of a directory is one that nobody but this kernel changes, so that inotify tells of every change.
// Network file systems and those in user space are changed by others without a word.
func tells(path string) bool {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return false
	}
	switch uint32(fs.Type) { // signed on some architectures
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.RAMFS_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC:
		return true
	}
	return false
}
