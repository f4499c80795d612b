package csi_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/handlers/csi"
	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
)

func TestNegotiate(t *testing.T) {
	for _, c := range []struct {
		announced []string
		want      string
	}{
		{[]string{"1.0.0"}, "1.0.0"},
		{[]string{"v1.0.0"}, "v1.0.0"},
		{[]string{"1.9.0", "1.10.0", "1.2.0"}, "1.10.0"},
		{[]string{"0.3.0", "1.1"}, "1.1"},
		{[]string{"2.0.0", "1.4.0"}, "1.4.0"},
		{[]string{"x", "1.0.0", ""}, "1.0.0"},
		{[]string{" 1.3.0-rc.1 "}, "1.3.0-rc.1"},
	} {
		if got, err := csi.Negotiate(c.announced); got != c.want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", c.announced, got, err, c.want)
		}
	}
	for _, c := range []struct {
		announced []string
		want      string
	}{
		{nil, `^no CSI version was announced; announce one of 1\.x$`},
		{[]string{"0.3.0", "0.2.0"}, `^none of the announced CSI versions \["0.3.0" "0.2.0"\] is supported: only 1\.x is, and 0\.x no more$`},
		{[]string{"2.0.0"}, `^none of the announced CSI versions \["2.0.0"\] is supported: only 1\.x is$`},
		{[]string{"one"}, `only 1\.x is; "one" is not a version: two numbers at least, for example 1\.9\.0$`},
		{[]string{"1"}, `only 1\.x is; "1" is not a version: two numbers at least`},
		{[]string{"01.2"}, `only 1\.x is; "01.2" is not a version`},
		{[]string{"1.99999999999999999999"}, `the number 99999999999999999999 is too large$`},
		{[]string{"1.\x1b[2J"}, `"1.\\x1b\[2J" is not a version`},
	} {
		if got, err := csi.Negotiate(c.announced); got != "" || err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) {
			t.Errorf("%q: got %q, %v, want %s", c.announced, got, err, c.want)
		}
	}
}

func FuzzNegotiate(f *testing.F) {
	for _, seed := range []string{"", "1.0.0", "0.3.0 1.0.0", "1.2 x v1.99 2.0", "1.99999999999999999999"} {
		f.Add(seed)
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, announced string) {
		versions := strings.Split(announced, " ")
		got, err := csi.Negotiate(versions)
		switch {
		case err != nil && got != "":
			t.Errorf("both %q and %v", got, err)
		case err == nil && !slices.ContainsFunc(versions, func(v string) bool { return strings.TrimSpace(v) == got }):
			t.Errorf("%q was not announced", got)
		case err == nil && !regexp.MustCompile(`^v?1\.\d`).MatchString(got):
			t.Errorf("%q is not 1.x", got)
		}
	})
}
