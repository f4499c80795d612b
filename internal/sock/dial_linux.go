package sock

import (
	"context"
	"io/fs"
	"net"
	"strconv"

	"golang.org/x/sys/unix"
)

// MaxPath is the length in bytes of the longest path at which a socket can be bound, and reached by programs that connect by path:
// sun_path of unix(7) without the terminating NUL.
const MaxPath = 107

// dialLong connects to a path that does not fit into a socket address, through the kernel's name for a descriptor of the socket's inode.
func dialLong(ctx context.Context, d *net.Dialer, path string) (net.Conn, error) {
	fd, err := openPath(path, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return d.DialContext(ctx, "unix", procPath(fd))
}

// openPath opens path for naming only (O_PATH), which needs no permission on the file itself.
func openPath(path string, flags int) (int, error) { return openFile(path, unix.O_PATH|flags) }

func openFile(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_CLOEXEC|flags, 0)
		if err == nil {
			return fd, nil
		}
		if err != unix.EINTR {
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
