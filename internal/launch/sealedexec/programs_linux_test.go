package sealedexec

import (
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// sleepPath is a program that was installed long ago.
func sleepPath(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("sleep")
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// start runs a program as if it were sleep, and returns its process.
func start(t *testing.T, path string) (pid int, startTime uint64) {
	t.Helper()
	cmd := exec.Command(path, "600")
	cmd.Args[0] = "sleep" // some programs are many
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid, sock.Start(cmd.Process.Pid)
}

func fileDigest(t *testing.T, path string) Digest {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(content)
}

// copyTo copies a program and adds to its end, which does not matter to the kernel.
func copyTo(t *testing.T, from, to, end string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to+".new", append(content, end...), 0o755)
	}
	if err == nil {
		err = os.Rename(to+".new", to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestDigestIsOfWhatRuns(t *testing.T) {
	var p Programs
	path := filepath.Join(t.TempDir(), "program")
	copyTo(t, sleepPath(t), path, "")
	was := fileDigest(t, path)
	old, oldStart := start(t, path)
	copyTo(t, sleepPath(t), path, "another")
	is := fileDigest(t, path)
	next, nextStart := start(t, path)
	for range 2 {
		if got, err := p.Digest(t.Context(), old, oldStart); err != nil || got != was {
			t.Errorf("the process from before has %v, %v; want %v", got, err, was)
		}
		if got, err := p.Digest(t.Context(), next, nextStart); err != nil || got != is || got == was {
			t.Errorf("the process from afterwards has %v, %v; want %v", got, err, is)
		}
	}
	if len(p.known) > 0 {
		t.Error("files that have just changed are remembered")
	}
}

func TestDigestsAreRemembered(t *testing.T) {
	var p Programs
	pid, startTime := start(t, sleepPath(t))
	want := fileDigest(t, sleepPath(t))
	if got, err := p.Digest(t.Context(), pid, startTime); err != nil || got != want {
		t.Fatalf("digest %v, %v; want %v", got, err, want)
	}
	f, err := os.Open(sleepPath(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !keepsTimes(f) {
		t.Skip("programs on this file system are not remembered")
	}
	id, err := identify(f)
	if err != nil {
		t.Fatal(err)
	}
	p.lookup(id).digest[0]++ // so that it can be told from what is read
	if got, err := p.Digest(t.Context(), pid, startTime); err != nil || got == want {
		t.Errorf("it is read again: %v, %v", got, err)
	}
	for i := range uint64(2 * maxKnown) {
		p.lookup(stamp{ino: i})
	}
	if len(p.known) > maxKnown {
		t.Errorf("%d programs are remembered", len(p.known))
	}
}

func TestFilesInMemoryAreNotRemembered(t *testing.T) {
	fd, err := unix.MemfdCreate("program", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "program")
	defer f.Close()
	if keepsTimes(f) {
		t.Error("a change through a mapping would go unnoticed")
	}
}

func TestProcessesThatAreNone(t *testing.T) {
	var p Programs
	pid, startTime := start(t, sleepPath(t))
	if _, err := p.Digest(t.Context(), pid, startTime+1); !errors.Is(err, ErrEnded) {
		t.Errorf("another process with its number: %v", err)
	}
	if _, err := p.Digest(t.Context(), 1<<22+1, 1); !errors.Is(err, ErrEnded) {
		t.Errorf("a process that cannot be: %v", err)
	}
	if _, err := p.Digest(t.Context(), 0, 0); !errors.Is(err, errUnreadable) {
		t.Errorf("a process that is not known: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Digest(ctx, pid, startTime); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	if got, err := p.Digest(t.Context(), pid, startTime); err != nil || got != fileDigest(t, sleepPath(t)) {
		t.Errorf("after one who gave up: %v, %v", got, err)
	}
}

func TestUnreadable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become somebody who may not read")
	}
	var p Programs
	pid, startTime := start(t, sleepPath(t))
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		none := [2]unix.CapUserData{}
		if err := unix.Capset(&header, &none[0]); err != nil {
			failed <- err
			return
		}
		_, err := p.Digest(context.Background(), pid, startTime)
		failed <- err
	}()
	if err := <-failed; !errors.Is(err, errUnreadable) || !errors.Is(err, os.ErrPermission) {
		t.Errorf("without the right to: %v", err)
	}
}
