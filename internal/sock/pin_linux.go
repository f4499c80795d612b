package sock

import (
	"context"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Pinned is a socket to which clients can connect even if it is not at its path any more. It holds a descriptor. Its methods are safe for
// concurrent use.
type Pinned struct {
	file *os.File
}

// Pin returns the socket at a path. It follows symbolic links. The caller closes it.
func Pin(path string) (*Pinned, error) {
	fd, err := openPath(path, 0)
	if err != nil {
		return nil, err
	}
	p := &Pinned{os.NewFile(uintptr(fd), path)}
	if e, err := entryAt(fd, "", unix.AT_EMPTY_PATH); err != nil || !e.IsSocket() {
		_ = p.Close()
		return nil, &fs.PathError{Op: "pin", Path: path, Err: unix.ENOTSOCK}
	}
	return p, nil
}

// Dial connects to the socket.
func (p *Pinned) Dial(ctx context.Context) (conn Conn, err error) {
	err = Control(p.file, func(fd int) error {
		unixConn, info, err := dialFD(ctx, fd, p.file.Name())
		conn = Conn{unixConn, info}
		return err
	})
	return conn, err
}

// Close releases the descriptor. Connections stay open.
func (p *Pinned) Close() error { return p.file.Close() }
