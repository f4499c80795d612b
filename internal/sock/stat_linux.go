package sock

import (
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/plugin"
)

const statxMask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID | unix.STATX_INO | unix.STATX_CTIME |
	unix.STATX_BTIME | unix.STATX_MTIME | unix.STATX_MNT_ID | unix.STATX_MNT_ID_UNIQUE

// Stat describes the file at path, which may be of any kind. It does not follow a symbolic link in the last element. It makes one system
// call. An error is an [*fs.PathError].
func Stat(path string) (Info, error) {
	e, err := StatEntry(path, false)
	return e.Info, err
}

// StatEntry is [Stat] with more results. If cached is set, it does not wait for a remote file system, and the result may be out of date.
func StatEntry(path string, cached bool) (Entry, error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	if cached {
		flags |= unix.AT_STATX_DONT_SYNC
	}
	return entryAt(unix.AT_FDCWD, path, flags)
}

// StatFile is [StatEntry] for an open file.
func StatFile(fd int) (Entry, error) {
	return entryAt(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC)
}

func entryAt(dir int, path string, flags int) (Entry, error) {
	var st unix.Statx_t
	_, err := uninterrupted(func() (int, error) { return 0, unix.Statx(dir, path, flags, statxMask, &st) })
	if err != nil {
		return Entry{}, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	birth := st.Ctime
	if st.Mask&unix.STATX_BTIME != 0 {
		birth = st.Btime
	}
	return Entry{
		Info: Info{
			ID: plugin.SocketID{
				Device: unix.Mkdev(st.Dev_major, st.Dev_minor),
				Inode:  st.Ino,
				Birth:  birth.Sec*1e9 + int64(birth.Nsec),
			},
			Mode: fileMode(uint32(st.Mode)),
			UID:  st.Uid,
			GID:  st.Gid,
			born: st.Mask&unix.STATX_BTIME != 0,
		},
		ModTime: time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)), Mount: st.Mnt_id,
		IsMountPoint: st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0,
	}, nil
}

// fileTypes and special map the kernel's types and mode bits to those of package fs.
var (
	fileTypes = map[uint32]fs.FileMode{
		unix.S_IFSOCK: fs.ModeSocket, unix.S_IFDIR: fs.ModeDir, unix.S_IFLNK: fs.ModeSymlink, unix.S_IFIFO: fs.ModeNamedPipe,
		unix.S_IFBLK: fs.ModeDevice, unix.S_IFCHR: fs.ModeDevice | fs.ModeCharDevice,
	}
	special = [...]struct {
		bit  uint32
		flag fs.FileMode
	}{{unix.S_ISUID, fs.ModeSetuid}, {unix.S_ISGID, fs.ModeSetgid}, {unix.S_ISVTX, fs.ModeSticky}}
)

func fileMode(m uint32) fs.FileMode {
	mode := fs.FileMode(m&0o777) | fileTypes[m&unix.S_IFMT]
	for _, s := range special {
		if m&s.bit != 0 {
			mode |= s.flag
		}
	}
	return mode
}
