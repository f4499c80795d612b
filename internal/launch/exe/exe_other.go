//go:build !linux

package exe

import (
	"errors"
	"fmt"
	"os"
)

// Image is a sealed copy of a program, which this system cannot make.
type Image struct{}

// Path, Digest, Size, Script and File describe a copy.
func (*Image) Path() string    { return "" }
func (*Image) Digest() Digest  { return Digest{} }
func (*Image) Size() int64     { return 0 }
func (*Image) Script() *Script { return nil }
func (*Image) File() *os.File  { return nil }

// Release gives the image back.
func (*Image) Release() {}

// Cache keeps copies of programs.
type Cache struct{}

// Open fails: there are no files in memory that can be sealed.
func (*Cache) Open(path string, _ *Digest) (*Image, error) {
	return nil, fmt.Errorf("copy %s to check it: sealed files in memory: %w", path, errors.ErrUnsupported)
}

// Close releases all copies.
func (*Cache) Close() {}

// TrustInterpreter refuses an interpreter that others can change.
func TrustInterpreter(path string) error {
	return fmt.Errorf("the interpreter %s: %w", path, errors.ErrUnsupported)
}
