package runtime_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// checked is a plugin of which everything is checked and limited that can be everywhere.
func checked(t *testing.T) launcher.Plugin {
	t.Helper()
	content, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(content)
	p := launchable("serve")
	p.SHA256, p.NoNewPrivs, p.Dir, p.Limits.OpenFiles = hex.EncodeToString(digest[:]), true, "/", 128
	return p
}

// A plugin of another user is found, registered and replaced as every other, and nothing of it is left.
func TestCheckedPluginOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can run a plugin as somebody else")
	}
	h := newHost(t)
	for dir := h.dir; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil || os.Chmod(dir, info.Mode().Perm()|0o011) != nil { // as /run is
			t.Fatal(err)
		}
	}
	p := checked(t)
	p.User, p.Group = "12345", "23456"
	h.set(p)
	first := h.running("registration")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", first.PID))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Uid:\t12345\t12345", "Gid:\t23456\t23456", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("the status of the process does not have %q", want)
		}
	}
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", first.PID)); err != nil || !strings.HasPrefix(exe, "/memfd:") {
		t.Errorf("it executes %s, %v, want a copy", exe, err)
	}
	if err := h.rt.Launcher().Restart(t.Context(), "unit"); err != nil {
		t.Fatal(err)
	}
	if second := h.running("replacement"); filepath.Dir(second.Socket) == filepath.Dir(first.Socket) {
		t.Errorf("two lives serve in %s", filepath.Dir(second.Socket))
	}
	if err := h.rt.Launcher().Stop("unit"); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(h.dir, "unit*")); err != nil || len(left) > 0 {
		t.Errorf("left in the plugin directory: %q, %v", left, err)
	}
}

// A program that is not the expected one is not started, and says so.
func TestChangedProgramIsNotLaunched(t *testing.T) {
	h := newHost(t)
	p := checked(t)
	was := p.SHA256
	p.SHA256 = strings.Repeat("0", 64)
	h.set(p)
	h.until("the wait for another program", func() bool { return h.unit().State == plugin.StateBlocked })
	if s := h.unit(); s.PID != 0 || !strings.Contains(s.LastError, was) || !strings.Contains(s.LastError, p.SHA256) {
		t.Errorf("it is %+v, want an error with both digests", s)
	}
}
