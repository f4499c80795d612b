package verify

import (
	"regexp"

	"github.com/patchbay-dev/patchbay/internal/foreign"
)

// Bounds of what a plugin may announce: what hosts accept by default.
const (
	maxText     = 4096
	maxVersions = 64
	// maxShown bounds an error that repeats what a plugin says.
	maxShown = 512
)

func clip(s string) string { return foreign.Cut(s, maxShown) }

var csiVersion = regexp.MustCompile(`^v?(\d+)(\.\d+)+$`)
