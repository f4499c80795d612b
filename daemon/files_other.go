//go:build !unix

package daemon

import "math"

func openAnother() error { return nil }

// openFilesLimit returns how many files this process may have open, which this system does not bound.
func openFilesLimit() int { return math.MaxInt32 }
