package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/mounttest"
)

// TestHungMount reproduces PAINS 110: a file system that does not answer, below a plugin directory or at one, is named and does not block.
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
	var wrong []string
	for _, f := range Examine(t.Context(), s) {
		if f.Status == Fail && (f.Check == "plugin-dirs" || f.Check == "sockets") {
			wrong = append(wrong, f.Message)
		}
	}
	if len(wrong) != 2 || !strings.Contains(wrong[0], at+" is on a file system that does not answer") || !strings.Contains(wrong[1], below) {
		t.Errorf("got %q", wrong)
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
