package sock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/patchbay-dev/patchbay/plugin"
)

// TestListens: whether anybody listens on a socket is known whatever happens to its path.
func TestListens(t *testing.T) {
	listens := func(id plugin.SocketID, want bool) {
		t.Helper()
		if got, err := Listens(id, os.Getpid()); err != nil || got != want {
			t.Errorf("it is %t, and the kernel says %t, %v", want, got, err)
		}
	}
	for name, leaves := range map[string]func(path string) error{
		"removed":        os.Remove,
		"moved":          func(path string) error { return os.Rename(path, path+"-away") },
		"replaced":       func(path string) error { return os.Rename(filepath.Join(filepath.Dir(path), "other"), path) },
		"with its place": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := tempDir(t)
			l, id := listenAt(t, filepath.Join(dir, "s"))
			listenAt(t, filepath.Join(dir, "other"))
			conn, err := net.Dial("unix", filepath.Join(dir, "s")) // which listens on nothing, and is at the path of who does
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			listens(id, true)
			if err := leaves(filepath.Join(dir, "s")); err != nil {
				t.Fatal(err)
			}
			listens(id, true)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			listens(id, false)
		})
	}
	t.Run("among many", func(t *testing.T) {
		dir := tempDir(t)
		l, id := listenAt(t, filepath.Join(dir, "s"))
		for i := range 1000 {
			listenAt(t, filepath.Join(dir, fmt.Sprint(i)))
		}
		if err := os.Remove(filepath.Join(dir, "s")); err != nil {
			t.Fatal(err)
		}
		listens(id, true)
		_ = l.Close()
		listens(id, false)
	})
	t.Run("of another process", func(t *testing.T) {
		_, id := listenAt(t, filepath.Join(tempDir(t), "s"))
		cmd := exec.CommandContext(t.Context(), "sleep", "100")
		if err := cmd.Start(); err != nil {
			t.Skip(err)
		}
		if listens, err := Listens(id, cmd.Process.Pid); listens || err != nil {
			t.Errorf("this process listens, and of another one the kernel says %t, %v", listens, err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Run("a file with its number", func(t *testing.T) {
		_, id := listenAt(t, filepath.Join(tempDir(t), "s"))
		id.Birth--
		listens(id, false)
	})
}

// TestListensElsewhere: what the kernel shows of another network namespace, which is nothing, proves nothing.
func TestListensElsewhere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a network namespace")
	}
	_, id := listenAt(t, filepath.Join(tempDir(t), "s"))
	id.Inode++
	cmd := exec.CommandContext(t.Context(), "sleep", "100")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	for _, pid := range []int{0, cmd.Process.Pid} {
		if listens, err := Listens(id, pid); listens || err == nil {
			t.Errorf("of process %d: %t, %v", pid, listens, err)
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if _, err := Listens(id, cmd.Process.Pid); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of one that has ended: %v", err)
	}
}

func listenAt(t *testing.T, path string) (net.Listener, plugin.SocketID) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = l.Close() })
	info, err := Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return l, info.ID
}

func BenchmarkListens(b *testing.B) {
	for b.Loop() {
		if _, err := Listens(plugin.SocketID{Inode: 1<<32 - 1}, os.Getpid()); err != nil {
			b.Fatal(err)
		}
	}
}
