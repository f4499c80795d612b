package main

import (
	"regexp"
	"strings"
	"time"
)

var (
	numbered   = regexp.MustCompile(`^\d+\.\d+`)
	described  = regexp.MustCompile(`^(.*)-(\d+)-g([0-9a-f]+)$`)
	prerelease = regexp.MustCompile(`^([0-9.]+)-(.+)$`)
	foreign    = regexp.MustCompile(`[^A-Za-z0-9.+~]`)
)

// debianVersion returns a version that sorts among Debian's as it is meant: v1.2.3-rc.1 before v1.2.3, commits after a tag behind it, and
// one that has no number before all that have.
func debianVersion(version string, at time.Time) string {
	version, dirty := strings.CutSuffix(version, "-dirty")
	suffix := ""
	if dirty {
		suffix = "+dirty"
	}
	version = strings.TrimPrefix(version, "v")
	if !numbered.MatchString(version) {
		return "0~" + at.Format("20060102150405") + "." + foreign.ReplaceAllString(version, ".") + suffix
	}
	if m := described.FindStringSubmatch(version); m != nil {
		version, suffix = m[1], "+"+m[2]+".g"+m[3]+suffix
	}
	if m := prerelease.FindStringSubmatch(version); m != nil {
		version = m[1] + "~" + m[2]
	}
	return foreign.ReplaceAllString(version, ".") + suffix
}
