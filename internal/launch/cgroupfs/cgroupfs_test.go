package cgroupfs

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
)

const (
	hybridMounts = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:2 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 /a\040b /sys/fs/cgroup/the\040unified rw,relatime - cgroup2 cgroup2 rw
`
	hybridGroups = "9:name=systemd:/s\n4:memory:/jobs/7\n3:cpu,cpuacct:/\n0::/a b/c\n"
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		mounts, groups string
		want           System
		kind           string
	}{
		"hybrid": {hybridMounts, hybridGroups, System{
			Unified: &Place{Mount: "/sys/fs/cgroup/the unified", Root: "/a b", Own: "/a b/c"},
			V1: map[string]Place{
				"memory":  {Mount: "/sys/fs/cgroup/memory", Root: "/", Own: "/jobs/7"},
				"cpu":     {Mount: "/sys/fs/cgroup/cpu,cpuacct", Root: "/", Own: "/"},
				"cpuacct": {Mount: "/sys/fs/cgroup/cpu,cpuacct", Root: "/", Own: "/"},
			},
		}, "hybrid (versions 1 and 2)"},
		"version 2": {"30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n", "0::/system.slice/x.service\n", System{
			Unified: &Place{Mount: "/sys/fs/cgroup", Root: "/", Own: "/system.slice/x.service"}, V1: map[string]Place{},
		}, "version 2"},
		"version 1": {strings.Join(strings.SplitAfter(hybridMounts, "\n")[:4], ""), "4:memory:/m\n", System{
			V1: map[string]Place{"memory": {Mount: "/sys/fs/cgroup/memory", Root: "/", Own: "/m"}},
		}, "version 1"},
		"the mount that shows the group is taken": {
			"1 0 0:1 /other /first rw - cgroup2 cgroup2 rw\n2 0 0:1 / /second rw - cgroup2 cgroup2 rw\n", "0::/own\n", System{
				Unified: &Place{Mount: "/second", Root: "/", Own: "/own"}, V1: map[string]Place{},
			}, "version 2"},
		"nothing": {"", "", System{V1: map[string]Place{}}, "none"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := Parse(test.mounts, test.groups)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if got.Kind() != test.kind {
				t.Errorf("kind %q, want %q", got.Kind(), test.kind)
			}
		})
	}
}

func TestDir(t *testing.T) {
	tests := map[string]struct {
		place Place
		want  string // empty for an error
	}{
		"below the root":      {Place{"/sys/fs/cgroup", "/", "/a/b"}, "/sys/fs/cgroup/a/b"},
		"the root":            {Place{"/sys/fs/cgroup", "/", "/"}, "/sys/fs/cgroup"},
		"below what is shown": {Place{"/mnt", "/a", "/a/b"}, "/mnt/b"},
		"beside it":           {Place{"/mnt", "/a", "/ab"}, ""},
		"outside a namespace": {Place{"/mnt", "/", "/../x"}, ""},
		"in none":             {Place{"/mnt", "/", ""}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := test.place.Dir(); got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("%q, %v, want %q", got, err, test.want)
			}
		})
	}
}

// Whatever is mounted, a group is looked for nowhere but below the mount.
func FuzzParse(f *testing.F) {
	f.Add(hybridMounts, hybridGroups)
	f.Add("1 0 0:1 /../.. /m rw - cgroup2 - rw\n", "0::/../../x\n:::\n1:a,,b=c:\n")
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, mountinfo, membership string) {
		s := Parse(mountinfo, membership)
		s.Kind()
		places := []Place{}
		if s.Unified != nil {
			places = append(places, *s.Unified)
		}
		for _, p := range s.V1 {
			places = append(places, p)
		}
		for _, p := range places {
			dir, err := p.Dir()
			if err != nil {
				continue
			}
			if below, err := filepath.Rel(filepath.Clean(p.Mount), dir); err != nil || !filepath.IsLocal(below) {
				t.Errorf("%q is not below %q", dir, p.Mount)
			}
		}
	})
}
