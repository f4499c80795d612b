package boltstate_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// fullEnv is the environment variable with a directory on which the test binary mounts a small file system, which it fills.
const fullEnv = "PATCHBAY_BOLTSTATE_TEST_FULL"

// TestFullDisk checks that changes fail on a full disk without loss of earlier ones, and succeed when there is space again.
func TestFullDisk(t *testing.T) {
	if dir := os.Getenv(fullEnv); dir != "" {
		fillDisk(t, dir)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFullDisk$", "-test.v")
	cmd.Env = append(os.Environ(), fullEnv+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, fs.ErrPermission):
		t.Skipf("no mount namespace is available: %v", err)
	case err != nil:
		t.Errorf("%v\n%s", err, out)
	}
}

func fillDisk(t *testing.T, dir string) {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(dir, "filler")
	write(t, filler, make([]byte, 700<<10))

	path := filepath.Join(dir, "state.db")
	store := mustOpen(t, path)
	big := func(i int) *dynamicplugins.PluginInfo {
		p := info(i)
		p.Options = map[string]string{"data": string(make([]byte, 3000))}
		return p
	}
	kept, failed := 0, 0
	for i := 0; failed < 10 && i < 1000; i++ {
		switch err := store.PutDynamicPluginChange(change(big(i))); {
		case err == nil:
			kept++
		case errors.Is(err, syscall.ENOSPC):
			failed++
		default:
			t.Fatalf("change %d: %v", i, err)
		}
	}
	if kept == 0 || failed == 0 {
		t.Fatalf("%d changes were kept and %d failed", kept, failed)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := store.PutDynamicPluginChange(change(big(1000))); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if names := storedNames(t, path); len(names) != kept+1 {
		t.Errorf("%d plugins are stored, want %d", len(names), kept+1)
	}
}
