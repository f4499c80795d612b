package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBrowser checks what .ci/browser, and so "make test", prints and installs where there is no browser, and that the README says so; see
// PAINS 152.
func TestBrowser(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	const install = "apt-get -qq update\napt-get -qq install --yes --no-install-recommends chromium\n"
	for name, c := range map[string]struct {
		uid, env, apt string // apt is the status of apt-get; none without one
		browser       bool
		calls         string
		says          []string
	}{
		"installs":        {uid: "0", apt: "0", calls: install, says: []string{"Installing Chromium with apt-get", "make test NO_INSTALL=1"}},
		"cannot install":  {uid: "0", apt: "1", calls: "apt-get -qq update\n", says: []string{"Installing", "Cannot install Chromium: the tests in a"}},
		"NO_INSTALL":      {uid: "0", env: "NO_INSTALL=1", apt: "0", says: []string{"NO_INSTALL is set: the tests in a browser will be skipped"}},
		"not root":        {uid: "1000", apt: "0", says: []string{"only root can install it here"}},
		"without apt-get": {uid: "0", says: []string{"only root can install it here"}},
		"has a browser":   {uid: "0", apt: "0", browser: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			program := func(name, text string) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte("#!"+bash+"\n"+text+"\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			program("id", "echo "+c.uid)
			if c.apt != "" {
				program("apt-get", `echo "apt-get $*" >> `+dir+"/calls\nexit "+c.apt)
			}
			if c.browser {
				program("chromium", "exit 1")
			}
			cmd := exec.CommandContext(t.Context(), bash, filepath.Join("..", "..", ".ci", "browser"))
			cmd.Env = []string{"PATH=" + dir, c.env}
			said, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("it fails: %v", err)
			}
			for _, want := range c.says {
				if !strings.Contains(string(said), want) {
					t.Errorf("it prints %q, want %q", said, want)
				}
			}
			if len(c.says) == 0 && len(said) > 0 {
				t.Errorf("it prints %q", said)
			}
			if calls, _ := os.ReadFile(filepath.Join(dir, "calls")); string(calls) != c.calls {
				t.Errorf("it calls %q, want %q", calls, c.calls)
			}
		})
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "Makefile"} {
		if text := read(t, name); !strings.Contains(text, "Chromium") || !strings.Contains(text, "NO_INSTALL=1") {
			t.Errorf("%s does not say how to run the tests without an installation of Chromium", name)
		}
	}
}
