package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/mounttest"
)

// TestHungMount reproduces PAINS 110: a file system that does not answer does not block. At a plugin directory it is a failure; below one
// it is named as not searched, as discovery does not search it.
func TestHungMount(t *testing.T) {
	if !mounttest.Isolated(t) {
		return
	}
	s := healthy(t)
	below, at := filepath.Join(s.PluginDirs[0], "remote"), filepath.Join(t.TempDir(), "plugins")
	try(t, os.Mkdir(below, 0o755))
	try(t, os.Mkdir(at, 0o755))
	s.PluginDirs = append(s.PluginDirs, at)
	mounttest.Hang(t, below)
	mounttest.Hang(t, at)
	var wrong, warnings []string
	for _, f := range Examine(t.Context(), s) {
		switch {
		case f.Check != "plugin-dirs" && f.Check != "sockets":
		case f.Status == Fail:
			wrong = append(wrong, f.Message)
		case f.Status == Warn:
			warnings = append(warnings, f.Message+": "+f.Remedy)
		}
	}
	if len(wrong) != 1 || !strings.Contains(wrong[0], at+" is on a file system that does not answer") {
		t.Errorf("failures %q", wrong)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], below) || !strings.Contains(warnings[0], "not searched") ||
		strings.Contains(warnings[0], "umount") {
		t.Errorf("warnings %q", warnings)
	}
}

// program makes a program of plugin p.
func program(t *testing.T, s *Subject, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(filepath.Dir(s.StatePath), "program")
	try(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o600))
	try(t, os.Chmod(path, mode))
	s.Plugins = []catalogue.Plugin{{Name: "p", Command: []string{path}}}
}
