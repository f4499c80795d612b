//go:build !linux

package doctor

import (
	"context"
	"runtime"
)

func checks() []check {
	return []check{{"system", func(context.Context, Subject) []Finding {
		return []Finding{warn("this machine cannot be checked: checks exist for Linux only, and this is "+runtime.GOOS,
			"run Patchbay on Linux, or look at the log of the daemon")}
	}}}
}
