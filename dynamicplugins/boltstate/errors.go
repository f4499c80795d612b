package boltstate

import (
	"errors"
	"fmt"
	"io/fs"
)

var (
	// ErrCorrupt says that the file is not one that this package made, or it is damaged.
	ErrCorrupt = errors.New("not a sound state file")
	// ErrNewer says that the file has a format that a newer version of the software made.
	ErrNewer = errors.New("state file of a newer format")
	// ErrLocked says that another process has the file open.
	ErrLocked = errors.New("state file in use")
	// ErrReplaced says that, when the file had to be opened again after a failure, another one was in its place.
	ErrReplaced = errors.New("state file was replaced")
	// ErrClosed says that the store was closed.
	ErrClosed = errors.New("state file was closed")
)

// fileError is an error about a state file as a whole that says what to do.
type fileError struct {
	path   string
	kind   error
	detail string
	advice string
}

func (e *fileError) Error() string {
	return fmt.Sprintf("cannot open state file %s: %s; %s", e.path, e.detail, e.advice)
}

func (e *fileError) Is(target error) bool { return target == e.kind }

func corrupt(path, format string, args ...any) error {
	return &fileError{path, ErrCorrupt, fmt.Sprintf(format, args...), "it was left as it is: move it away to start with an empty state"}
}

// unsound is corrupt, unless what is wrong is that the device cannot be read: then nobody knows what is in the file.
func unsound(path, format string, err error) error {
	if _, device := errors.AsType[*fs.PathError](err); device {
		return fmt.Errorf("cannot read state file: %w; see whether its device works", err)
	}
	return corrupt(path, format, err)
}

func newer(path string, version uint64) error {
	return &fileError{path, ErrNewer, fmt.Sprintf("it has format %d and this program knows formats up to %d", version, formatVersion),
		"run the newer program that wrote it, or move it away to start with an empty state"}
}

func locked(path string) error {
	return &fileError{path, ErrLocked, "another process holds it", "stop that process or use another state file"}
}
