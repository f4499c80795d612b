package daemon

import (
	"runtime/debug"
	"testing"
)

func TestBuildOf(t *testing.T) {
	vcs := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.modified", Value: modified}, {Key: "vcs.revision", Value: "abc"}}
	}
	for name, test := range map[string]struct {
		version, commit string
		info            debug.BuildInfo
		want            Build
	}{
		"nothing":  {want: Build{"devel", ""}},
		"linker":   {"v1.0.0", "def", debug.BuildInfo{Main: debug.Module{Version: "v9"}, Settings: vcs("true")}, Build{"v1.0.0", "def"}},
		"module":   {info: debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}, want: Build{"v1.2.3", ""}},
		"checkout": {info: debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: vcs("false")}, want: Build{"devel", "abc"}},
		"pseudo-version": {info: debug.BuildInfo{Main: debug.Module{Version: "v0.0.0-20261128045526-26eda0b423c7"}},
			want: Build{"v0.0.0-20261128045526-26eda0b423c7", "26eda0b423c7"}},
		"pseudo-version after a release": {info: debug.BuildInfo{Main: debug.Module{Version: "v1.2.4-0.20261128045526-26eda0b423c7"}},
			want: Build{"v1.2.4-0.20261128045526-26eda0b423c7", "26eda0b423c7"}},
		"pseudo-version of a changed tree": {info: debug.BuildInfo{Main: debug.Module{Version: "v0.0.0-dirty.5aF.0.20261128045526-26eda0b423c7"}},
			want: Build{"v0.0.0-dirty.5aF.0.20261128045526-26eda0b423c7", "26eda0b423c7-dirty"}},
		"dirty": {info: debug.BuildInfo{Settings: vcs("true")}, want: Build{"devel", "abc-dirty"}},
	} {
		if got := buildOf(test.version, test.commit, &test.info); got != test.want {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}
