package sock

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

const statxMask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID | unix.STATX_INO | unix.STATX_CTIME | unix.STATX_BTIME

// Stat describes what is at path without following a symbolic link in its last element. It works for every kind of file; ask
// [Info.IsSocket]. An error is an [*fs.PathError]. It costs one system call.
func Stat(path string) (Info, error) {
	info, err := statAt(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT)
	if err != nil {
		return Info{}, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	return info, nil
}

func statAt(dir int, path string, flags int) (Info, error) {
	var st unix.Statx_t
	for {
		err := unix.Statx(dir, path, flags, statxMask, &st)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return Info{}, err
		}
	}
	birth := st.Ctime
	if st.Mask&unix.STATX_BTIME != 0 {
		birth = st.Btime
	}
	return Info{
		ID: ID{
			Device: unix.Mkdev(st.Dev_major, st.Dev_minor),
			Inode:  st.Ino,
			Birth:  birth.Sec*1e9 + int64(birth.Nsec),
		},
		Mode: fileMode(uint32(st.Mode)),
		UID:  st.Uid,
		GID:  st.Gid,
	}, nil
}

// fileMode translates the mode of a file as the kernel gives it.
func fileMode(m uint32) fs.FileMode {
	mode := fs.FileMode(m & 0o777)
	switch m & unix.S_IFMT {
	case unix.S_IFSOCK:
		mode |= fs.ModeSocket
	case unix.S_IFDIR:
		mode |= fs.ModeDir
	case unix.S_IFLNK:
		mode |= fs.ModeSymlink
	case unix.S_IFBLK:
		mode |= fs.ModeDevice
	case unix.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFIFO:
		mode |= fs.ModeNamedPipe
	}
	if m&unix.S_ISUID != 0 {
		mode |= fs.ModeSetuid
	}
	if m&unix.S_ISGID != 0 {
		mode |= fs.ModeSetgid
	}
	if m&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}
