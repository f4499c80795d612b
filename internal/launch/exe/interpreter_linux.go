package exe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many symbolic links a path may have, as in the kernel (path_resolution(7)).
const maxLinks = 40

// TrustInterpreter refuses an interpreter that somebody else than root or the user of this process can change or replace, is setuid, or is
// no program. The interpreter runs from its file: it belongs to the system, as the shared libraries do.
func TrustInterpreter(path string) error {
	if err := trust(path); err != nil {
		return fmt.Errorf("the interpreter %s: %w", path, err)
	}
	return nil
}

// trust follows an absolute path as the kernel does: whoever can change a directory or a link on the way can put another file at its end.
func trust(path string) error {
	const root = "/"
	at, rest, links := root, strings.Split(path, root), 0
	var st unix.Stat_t
	if err := trusted(at, &st); err != nil {
		return err
	}
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		next := filepath.Join(at, name) // no link is left in at, so that .. is the directory above
		if err := trusted(next, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return unix.ELOOP
		}
		target, err := os.Readlink(next)
		if err != nil {
			return err
		}
		if filepath.IsAbs(target) {
			at = root
		}
		rest = append(strings.Split(target, root), rest...)
	}
	return fit(&st)
}

// trusted refuses what others can change. In a sticky directory they can make files, and cannot touch those of root and this user.
func trusted(path string, st *unix.Stat_t) error {
	if err := unix.Lstat(path, st); err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	kind := st.Mode & unix.S_IFMT
	sticky := kind == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() || kind != unix.S_IFLNK && st.Mode&0o022 != 0 && !sticky {
		return fmt.Errorf("%w: others than root can change %s (it belongs to user %d and has mode %04o)", ErrUnfit, path, st.Uid, st.Mode&0o7777)
	}
	return nil
}
