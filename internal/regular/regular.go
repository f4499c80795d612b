// Package regular reads and replaces files with configured paths. It refuses files that are not regular, such as pipes and devices, which
// may block when they are opened or be endless.
package regular

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// maxSize is the size in bytes of the largest file that Read returns.
const maxSize = 64 << 20

// ErrNotRegular is the error of a pipe, a device and a socket. That of a directory is [syscall.EISDIR].
var ErrNotRegular = errors.New("it is not a regular file")

// Check returns an error if a file exists at the path and is not regular.
func Check(path string) error {
	if info, err := os.Stat(path); err == nil {
		return check(path, info)
	}
	return nil
}

func check(path string, info fs.FileInfo) error {
	switch {
	case info.Mode().IsRegular():
		return nil
	case info.IsDir():
		return &fs.PathError{Op: "open", Path: path, Err: syscall.EISDIR}
	}
	return &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
}

// Open opens a regular file for reading, without blocking.
func Open(path string) (*os.File, error) {
	if err := Check(path); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe may have replaced it
	if err != nil {
		return nil, err
	}
	return file, CheckFile(file)
}

// CheckFile closes an open file that is not regular, and returns an error.
func CheckFile(file *os.File) error {
	info, err := file.Stat()
	if err == nil {
		err = check(file.Name(), info)
	}
	if err != nil {
		_ = file.Close() // nothing was written
	}
	return err
}

// Read returns the content of a regular file of at most maxSize bytes.
func Read(path string) ([]byte, error) {
	file, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err == nil && len(text) > maxSize {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it has more than %d bytes", maxSize)}
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}

// Replace replaces the content of a file. After a crash the file has either the new or the former content.
func Replace(path, text string) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temporary.Name()) }() // after the rename there is none
	_, written := temporary.WriteString(text)
	if err := errors.Join(written, temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}

// Absolute makes paths absolute, except empty ones, so that a later change of the working directory has no effect on them.
func Absolute(paths ...*string) error {
	for _, path := range paths {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("cannot find out where %s is: %w; use an absolute path", *path, err)
		}
		*path = abs
	}
	return nil
}
