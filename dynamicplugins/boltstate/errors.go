package boltstate

import (
	"errors"
	"fmt"
)

var (
	// ErrCorrupt says that the file is not one that this package made, or it is damaged.
	ErrCorrupt = errors.New("not a sound state file")
	// ErrNewer says that the file has a format that a newer version of the software made.
	ErrNewer = errors.New("state file of a newer format")
	// ErrLocked says that another process has the file open.
	ErrLocked = errors.New("state file in use")
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

func newer(path string, version uint64) error {
	return &fileError{path, ErrNewer, fmt.Sprintf("it has format %d and this program knows formats up to %d", version, formatVersion),
		"run the newer program that wrote it, or move it away to start with an empty state"}
}

func locked(path string) error {
	return &fileError{path, ErrLocked, "another process holds it", "stop that process or use another state file"}
}
