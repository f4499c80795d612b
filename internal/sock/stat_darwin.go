package sock

import (
	"os"
	"syscall"
)

// Stat describes what is at path without following a symbolic link in its last element. It works for every kind of file; ask
// [Info.IsSocket]. An error is an [*fs.PathError].
func Stat(path string) (Info, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return Info{}, err
	}
	info := Info{Mode: fi.Mode()}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		info.ID = ID{Device: uint64(st.Dev), Inode: st.Ino, Birth: st.Birthtimespec.Nano()}
		info.UID, info.GID = st.Uid, st.Gid
	}
	return info, nil
}
