package daemon

import (
	"cmp"
	"regexp"
	"runtime/debug"
)

// The linker sets version and commit for releases (-ldflags "-X <package>.version=v1.2.3 -X <package>.commit=<hash>").
var version, commit string

// Build identifies a build of the program.
type Build struct {
	// Version is the released version, for example "v1.2.0", or "devel" for an unreleased build.
	Version string
	// Commit is the commit of the source, with the suffix "-dirty" if the tree had changes; empty if unknown.
	Commit string
}

// ThisBuild returns the build of the running program. Values that the linker did not set come from the build information of the Go
// toolchain.
func ThisBuild() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return buildOf(version, commit, info)
}

func buildOf(version, commit string, info *debug.BuildInfo) Build {
	build := Build{Version: cmp.Or(version, info.Main.Version), Commit: cmp.Or(commit, commitOf(info))}
	if build.Version == "" || build.Version == "(devel)" {
		build.Version = "devel"
	}
	return build
}

// pseudoVersion matches a version that the go command derived from a commit. The last two parts are the time and the first twelve digits of
// the commit; "make module" inserts "dirty" if the tree had changes. See https://go.dev/ref/mod#pseudo-versions.
var pseudoVersion = regexp.MustCompile(`^v[^-]+-(dirty\.)?.*\d{14}-([0-9a-f]{12})$`)

// commitOf returns the commit of a build from the recorded VCS revision or, if there is none, from the pseudo-version.
func commitOf(info *debug.BuildInfo) string {
	var revision, suffix string
	for _, setting := range info.Settings {
		switch {
		case setting.Key == "vcs.revision":
			revision = setting.Value
		case setting.Key == "vcs.modified" && setting.Value == "true":
			suffix = "-dirty"
		}
	}
	if parts := pseudoVersion.FindStringSubmatch(info.Main.Version); revision == "" && parts != nil {
		revision = parts[2]
		if parts[1] != "" {
			suffix = "-dirty"
		}
	}
	if revision == "" {
		return ""
	}
	return revision + suffix
}
