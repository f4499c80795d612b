//go:build !linux

package sock

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"path/filepath"
	"syscall"
)

// DialBelow is [Dial] for a socket below a directory in which others may make files: it fails if there is a symbolic link between root and
// the socket, and if what is at the path changes meanwhile. Root itself may be a link.
func DialBelow(ctx context.Context, root, path string) (*net.UnixConn, Info, error) {
	names, ok := below(root, path)
	if !ok {
		return nil, Info{}, errNotBelow(root, path)
	}
	dir := root
	for _, name := range names[:len(names)-1] {
		dir = filepath.Join(dir, name)
		if info, err := Stat(dir); err != nil || !info.Mode.IsDir() {
			return nil, Info{}, errors.Join(err, &fs.PathError{Op: "connect", Path: path, Err: syscall.ENOTDIR})
		}
	}
	return dialStill(ctx, path)
}

// DialKnown is [Dial] with a connection that knows its socket. It refuses a symbolic link at the end of the path, and fails if what is at
// the path changes meanwhile.
func DialKnown(ctx context.Context, path string) (Conn, error) {
	conn, info, err := dialStill(ctx, path)
	return Conn{conn, info}, err
}

// dialStill connects to a socket that is the same before and after.
func dialStill(ctx context.Context, path string) (*net.UnixConn, Info, error) {
	before, err := Stat(path)
	if err == nil && !before.IsSocket() {
		err = &fs.PathError{Op: "connect", Path: path, Err: syscall.ENOTSOCK}
	}
	if err != nil {
		return nil, Info{}, err
	}
	conn, err := Dial(ctx, path)
	if err != nil {
		return nil, Info{}, err
	}
	if after, err := Stat(path); err != nil || after.ID != before.ID {
		gone := &fs.PathError{Op: "connect", Path: path, Err: syscall.ENOENT}
		return nil, Info{}, errors.Join(gone, conn.Close())
	}
	return conn, before, nil
}
