// Package mounttest mounts file systems that do not answer, for tests of code that must not hang with them. It does not check that code:
// system calls on such a file system only block, until the test ends.
package mounttest

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespace is the environment variable that marks the process in which a test may mount.
const inNamespace = "PATCHBAY_MOUNTTEST"

// Isolated runs the calling test in another process with its own mount namespace, so that its mounts affect no other process. It returns
// true in that process. Otherwise the test has been run, and the caller must return. It skips the test if it cannot mount such a file
// system.
func Isolated(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inNamespace) == t.Name() {
		return true
	}
	fuse, err := openFUSE()
	if err != nil {
		t.Skip(err)
	}
	_ = unix.Close(fuse)
	if os.Geteuid() != 0 {
		t.Skip("mounting takes CAP_SYS_ADMIN")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v") //nolint:gosec // this test program
	cmd.Env = append(os.Environ(), inNamespace+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

func openFUSE() (int, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("a file system that does not answer needs /dev/fuse: %w", err)
	}
	return fd, nil
}

// Hang mounts a file system that does not answer at dir, until heal is called or the test ends. Then all blocked system calls fail.
func Hang(t testing.TB, dir string) (heal func()) {
	t.Helper()
	fd, err := openFUSE()
	if err != nil {
		t.Skip(err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)
	if err := unix.Mount("silent", dir, "fuse", 0, options); err != nil {
		_ = unix.Close(fd)
		t.Fatalf("mount a file system at %s: %v", dir, err)
	}
	heal = sync.OnceFunc(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
		_ = unix.Close(fd) // makes the blocked system calls fail
	})
	t.Cleanup(heal)
	return heal
}
