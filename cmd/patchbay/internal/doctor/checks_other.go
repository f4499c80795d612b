//go:build !linux

package doctor

import (
	"context"
	"runtime"
)

func checks() []check {
	return []check{{"system", func(context.Context, Subject) []Finding {
		return []Finding{warn("checks of the machine exist for Linux only, this is "+runtime.GOOS,
			"run Patchbay on Linux, or look at the log of the daemon")}
	}}}
}
