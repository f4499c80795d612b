// Package cgroupfs finds the mounted cgroup hierarchies and the group of a process in each of them; see cgroups(7), proc_pid_cgroup(5) and
// proc_pid_mountinfo(5). It does not create groups or set limits.
package cgroupfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// System has the mounted hierarchies and the groups of one process.
type System struct {
	// Unified is the hierarchy of version 2; nil if it is not mounted.
	Unified *Place
	// V1 has the hierarchies of version 1 by controller ("memory", "cpu"). It omits hierarchies without a controller.
	V1 map[string]Place
}

// Place is the group of a process in one hierarchy.
type Place struct {
	// Mount is the mount point of the hierarchy, and Root the group that is mounted there.
	Mount, Root string
	// Own is the group of the process; empty if it is not in a group.
	Own string
}

// Self returns the System of this process.
func Self() (System, error) {
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return System{}, err
	}
	membership, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return System{}, err
	}
	return Parse(string(mountinfo), string(membership)), nil
}

// Parse reads the texts of /proc/PID/mountinfo and /proc/PID/cgroup.
func Parse(mountinfo, membership string) System {
	s := System{V1: map[string]Place{}}
	v1 := v1Groups(membership)
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(mountinfo) {
		// Before the separator: ID, parent, device, root, mount point and more; after it: type, source, options.
		before, after, found := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !found || len(fields) < 5 || len(kind) < 1 {
			continue
		}
		p := Place{Mount: unescape.Replace(fields[4]), Root: unescape.Replace(fields[3])}
		switch {
		case kind[0] == "cgroup2":
			p.Own, _ = UnifiedGroup(membership)
			if s.Unified == nil || !s.Unified.visible() && p.visible() {
				s.Unified = &p
			}
		case kind[0] == "cgroup" && len(kind) >= 3:
			for option := range strings.SplitSeq(kind[2], ",") {
				own, isController := v1[option]
				p.Own = own
				if known, twice := s.V1[option]; isController && (!twice || !known.visible() && p.visible()) {
					s.V1[option] = p
				}
			}
		}
	}
	return s
}

// UnifiedGroup returns the group of version 2 from the text of /proc/PID/cgroup.
func UnifiedGroup(membership string) (string, bool) {
	for line := range strings.Lines(membership) {
		if own, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return own, true
		}
	}
	return "", false
}

func v1Groups(membership string) map[string]string {
	groups := map[string]string{}
	for line := range strings.Lines(membership) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, own, _ := strings.Cut(rest, ":")
		for c := range strings.SplitSeq(controllers, ",") {
			if c != "" && !strings.Contains(c, "=") { // name=systemd has no controller
				groups[c] = own
			}
		}
	}
	return groups
}

// Dir returns the directory of the process's group.
func (p Place) Dir() (string, error) {
	if p.Own == "" {
		return "", errors.New("this process is in no cgroup of the hierarchy at " + p.Mount)
	}
	below, err := filepath.Rel(p.Root, p.Own)
	outside := strings.HasPrefix(p.Own, "/..") // of the cgroup namespace of this process
	if err != nil || outside || !filepath.IsLocal(below) {
		return "", fmt.Errorf("the cgroup %s of this process is not below %s, which is what is mounted at %s", p.Own, p.Root, p.Mount)
	}
	return filepath.Join(p.Mount, below), nil
}

func (p Place) visible() bool {
	_, err := p.Dir()
	return err == nil
}

// Kind names the kind of system in words.
func (s System) Kind() string {
	switch {
	case s.Unified != nil && len(s.V1) > 0:
		return "hybrid (versions 1 and 2)"
	case s.Unified != nil:
		return "version 2"
	case len(s.V1) > 0:
		return "version 1"
	}
	return "none"
}

// Controllers returns the controllers that are available in a group of version 2, given by its directory; nil if it cannot be read.
func Controllers(dir string) []string {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return nil
	}
	controllers := strings.Fields(string(b))
	slices.Sort(controllers)
	return controllers
}
