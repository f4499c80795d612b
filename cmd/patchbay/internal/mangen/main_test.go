package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/cli"
)

func TestEveryCommandHasAManPage(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "0")
	dir := t.TempDir()
	if err := manPages(dir); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Hidden {
			return
		}
		want[strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"] = true
		for _, child := range cmd.Commands() {
			visit(child)
		}
	}
	visit(cli.Manual())
	for name := range want {
		page, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(string(page), `"Jan 1970"`) {
			t.Errorf("%s does not have the date of SOURCE_DATE_EPOCH: %.200s", name, page)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !want[e.Name()] {
			t.Errorf("%s is the page of no command", e.Name())
		}
	}
	if len(want) < 20 {
		t.Errorf("only %d commands have a page", len(want))
	}
}

// The defaults of flags depend on the user, and a package must not depend on who builds it.
func TestPagesAreThoseOfRoot(t *testing.T) {
	t.Setenv("HOME", "/home/somebody")
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/1000")
	dir := t.TempDir()
	if err := manPages(dir); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "patchbay-run.1"))
	if err != nil {
		t.Fatal(err)
	}
	if text := string(page); !strings.Contains(text, "/var/lib/patchbay/state.db") || strings.Contains(text, "/home/somebody") {
		t.Error("patchbay-run.1 does not name the default paths of root")
	}
}

func TestCompletions(t *testing.T) {
	dir := t.TempDir()
	if err := completions(dir); err != nil {
		t.Fatal(err)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script, err := os.ReadFile(filepath.Join(dir, "patchbay."+shell))
		if err != nil || !strings.Contains(string(script), "patchbay") {
			t.Errorf("no completion script for %s: %v", shell, err)
		}
	}
}
