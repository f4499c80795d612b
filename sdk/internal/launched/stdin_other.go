//go:build !unix

package launched

import "os"

// openStdin returns standard input. A read of it cannot be interrupted on this system, on which no plugin is launched.
func openStdin() (*os.File, error) { return os.Stdin, nil }
