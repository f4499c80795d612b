package main

import (
	"os/exec"
	"testing"
	"time"
)

func TestDebianVersion(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	// In the order in which Debian has to sort them.
	cases := []struct{ version, want string }{
		{"devel", "0~20260102030405.devel"},
		{"e7f85b8", "0~20260102030405.e7f85b8"},
		{"e7f85b8-dirty", "0~20260102030405.e7f85b8+dirty"},
		{"v0.9.0", "0.9.0"},
		{"v1.0.0-rc.1", "1.0.0~rc.1"},
		{"v1.0.0-rc.1-3-gabc1234", "1.0.0~rc.1+3.gabc1234"},
		{"v1.0.0", "1.0.0"},
		{"v1.0.0-4-gabc1234", "1.0.0+4.gabc1234"},
		{"v1.0.0-4-gabc1234-dirty", "1.0.0+4.gabc1234+dirty"},
		{"v1.0.1", "1.0.1"},
	}
	for i, c := range cases {
		got := debianVersion(c.version, at)
		if got != c.want {
			t.Errorf("%s is %s, want %s", c.version, got, c.want)
		}
		dpkg, err := exec.LookPath("dpkg")
		if err != nil || i == 0 {
			continue
		}
		before := debianVersion(cases[i-1].version, at)
		if exec.CommandContext(t.Context(), dpkg, "--compare-versions", before, "lt", got).Run() != nil {
			t.Errorf("%s does not sort before %s", before, got)
		}
	}
}
