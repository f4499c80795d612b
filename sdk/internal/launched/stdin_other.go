//go:build !unix

package launched

import "os"

// openStdin returns standard input. A read of it cannot be interrupted on this system, on which no plugin is launched.
func openStdin() (*os.File, error) { return os.Stdin, nil }

// inherited returns a file that this process inherited.
func inherited(fd int, name string) *os.File { return os.NewFile(uintptr(fd), name) }
