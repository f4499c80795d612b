package sock

import (
	"net"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// bind listens on path, which may be longer than a socket address can hold.
func bind(path string) (*net.UnixListener, error) {
	// gofail: var sockBind int
	// return nil, unix.Errno(sockBind)
	dir, err := openPath(filepath.Dir(path), unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	return net.ListenUnix("unix", &net.UnixAddr{Name: procPath(dir) + "/" + filepath.Base(path), Net: "unix"})
}
