package cli

import (
	"runtime/debug"
	"testing"
)

// TestInvocation checks that the commands that "patchbay demo" and "patchbay init" print can be typed as they are.
func TestInvocation(t *testing.T) {
	const pseudo = "v0.0.0-20261128131917-818492d60eda"
	built := &debug.BuildInfo{Main: debug.Module{Version: pseudo}, Settings: []debug.BuildSetting{{Key: "vcs", Value: "git"}}}
	for name, c := range map[string]struct {
		version string
		info    *debug.BuildInfo
		program string
		inClone bool
	}{
		"go run":     {"devel", &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "go run ./cmd/patchbay", true},
		"go build":   {pseudo, built, "./patchbay", true},
		"a release":  {"v1.2.3", built, "patchbay", false},
		"go install": {"v1.2.3", &debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}, "patchbay", false},
	} {
		if program, inClone := invocationOf("./patchbay", c.version, c.info); program != c.program || inClone != c.inClone {
			t.Errorf("%s: %q, %v, want %q, %v", name, program, inClone, c.program, c.inClone)
		}
	}
}
