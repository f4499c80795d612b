//go:build !linux && !darwin

package sock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
)

// Stat describes what is at path without following a symbolic link in its last element. It works for every kind of file; ask
// [Info.IsSocket]. An error is an [*fs.PathError]. On this system the ID is made of the modification time alone.
func Stat(path string) (Info, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return Info{}, err
	}
	return Info{Mode: fi.Mode(), ID: ID{Birth: fi.ModTime().UnixNano()}}, nil
}

// PeerOf is not supported on this system: the error wraps [errors.ErrUnsupported].
func PeerOf(*net.UnixConn) (Peer, error) {
	return Peer{}, fmt.Errorf("the peer of a Unix socket is not known on this system: %w", errors.ErrUnsupported)
}

// MayConnect cannot say anything on this system.
func MayConnect(string, Info) error { return nil }

// Listener is a listening socket that owns its path. There is none on this system.
type Listener struct{ net.Listener }

// Listen is not supported on this system: the error wraps [errors.ErrUnsupported].
func Listen(path string, _ fs.FileMode) (*Listener, error) {
	return nil, fmt.Errorf("cannot listen on %s: Unix sockets with an owner are not supported on this system: %w", path, errors.ErrUnsupported)
}

// IsServed reports true: the server is not known on this system.
func IsServed(string) bool { return true }

// Lock is not supported on this system: the error wraps [errors.ErrUnsupported].
func Lock(path string) (unlock func() error, err error) {
	return nil, fmt.Errorf("cannot lock %s: %w", path, errors.ErrUnsupported)
}

// HoldDir is not supported on this system: the error wraps [errors.ErrUnsupported].
func HoldDir(path string) (*os.File, error) {
	return nil, fmt.Errorf("cannot lock %s: %w", path, errors.ErrUnsupported)
}

// HoldTemp is not supported on this system: the error wraps [errors.ErrUnsupported].
func HoldTemp(parent, _ string) (*os.File, error) { return HoldDir(parent) }

// RemoveUnheld does nothing on this system.
func RemoveUnheld(_, _ string, _ func(path string)) {}

// Placed is a listening socket whose place a later one may take. There is none on this system.
type Placed struct{ net.Listener }

// Place is not supported on this system: the error wraps [errors.ErrUnsupported].
func Place(_ context.Context, path string, _ fs.FileMode, _ func(*net.UnixConn) error) (*Placed, error) {
	return nil, fmt.Errorf("cannot listen on %s: Unix sockets with an owner are not supported on this system: %w", path, errors.ErrUnsupported)
}

// Traces returns none.
func Traces(string) []string { return nil }

// Flush does nothing.
func (*Placed) Flush(context.Context) error { return nil }

// Commit does nothing.
func (*Placed) Commit(context.Context) error { return nil }

// Withdraw does nothing.
func (*Placed) Withdraw(context.Context) (restored bool, err error) { return false, nil }

// Made is the socket of a program that is about to be started, of which there is none on this system.
type Made struct {
	File *os.File
	Path string
}

// Make makes no socket: the program has to make its own.
func Make(string) (*Made, error) { return nil, nil }

// Bind does nothing.
func (*Made) Bind() error { return nil }

// ID returns zero.
func (*Made) ID() ID { return ID{} }

// Remove has nothing to remove.
func (*Made) Remove() error { return nil }

// RemoveMade has nothing to remove.
func RemoveMade(string) error { return nil }

// IsAnothers reports false: nothing is known of the sockets of others.
func IsAnothers(string, ID) bool { return false }

// TakeMade is not supported on this system: the error wraps [errors.ErrUnsupported].
func TakeMade(file *os.File, _, path string, _ fs.FileMode) (*Placed, error) {
	return nil, errors.Join(fmt.Errorf("cannot listen on %s: %w", path, errors.ErrUnsupported), file.Close())
}
