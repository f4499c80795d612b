//go:build linux || darwin

package sock

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-dev/patchbay/plugin"
)

// TestMade: nobody meets a socket that was made for a program before that listens, and then it is where the program serves, with its mode.
func TestMade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.sock")
	for range 2 { // the second finds what a host that was killed has left
		made := bound(t, path)
		if conn, err := Dial(context.Background(), made.Path); err == nil || !IsRefused(err) {
			t.Errorf("before it listens, connect says %v, want refused; %v", err, conn)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("before it listens, %s is there: %v", path, err)
		}
		_ = made.File.Close()
	}
	if err := RemoveMade(path); err != nil {
		t.Fatal(err)
	}
	made := bound(t, path)
	l, err := TakeMade(made.File, made.Path, path, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := Stat(path)
	if err != nil || info.Mode.Perm() != 0o640 || info.ID != l.id {
		t.Errorf("it is %+v, %v; want mode 0640 and %v", info, err, l.id)
	}
	conn, err := Dial(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if err := RemoveMade(path); err != nil {
		t.Errorf("nothing is left to be removed: %v", err)
	}
	lock, err := acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Withdraw(context.Background()); err != nil {
		t.Errorf("it needs no lock, because no other process has its path: %v", err)
	}
	if err := release(lock); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

func bound(t *testing.T, path string) *Made {
	t.Helper()
	made, err := Make(path)
	if err == nil {
		err = made.Bind()
	}
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// TestMadeGoneOrLong: a program whose socket has vanished gets an error, and one whose name is too long makes its own.
func TestMadeGoneOrLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.sock")
	made := bound(t, path)
	if err := made.Remove(); err != nil {
		t.Fatal(err)
	}
	if l, err := TakeMade(made.File, made.Path, path, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, %v", l, err)
	}
	if made, err := Make(filepath.Join(t.TempDir(), strings.Repeat("x", MaxPath))); made != nil || err != nil {
		t.Errorf("got %v, %v", made, err)
	}
}

// TestMadeByAnother: the socket that another host has made for the same path stays, and works; see PAINS 193.
func TestMadeByAnother(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.sock")
	first := bound(t, path)
	second, err := Make(path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.File.Close()
	if err := second.Bind(); canTellHolder && !errors.Is(err, ErrInUse) {
		t.Errorf("the second host gets %v, want %v", err, ErrInUse)
	}
	if err := second.Remove(); err != nil {
		t.Error(err)
	}
	if err := RemoveMade(path); canTellHolder && !errors.Is(err, ErrInUse) {
		t.Errorf("to remove the socket gives %v, want %v", err, ErrInUse)
	}
	_ = first.File.Close()
	third := bound(t, path)
	if err := first.Remove(); err != nil {
		t.Error(err)
	}
	l, err := TakeMade(third.File, third.Path, path, 0o600)
	if err != nil {
		t.Fatalf("the third host's socket: %v", err)
	}
	_ = l.Close()
}

// TestIsAnothers covers what the owner of a path, whose process has ended, may find there.
func TestIsAnothers(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	made := bound(t, path("p"))
	defer made.File.Close()
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path("dead"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	own, err := Listen(path("own"), 0o600)
	if err == nil {
		err = os.WriteFile(path("file"), nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	other := plugin.SocketID{Device: 1, Inode: 1}
	for _, c := range []struct {
		path string
		id   plugin.SocketID
		want bool
	}{
		{made.Path, made.id, false},
		{made.Path, other, true},
		{made.Path, plugin.SocketID{}, false}, // nobody accepts
		{path("dead"), plugin.SocketID{}, false},
		{path("dead"), other, true},
		{path("own"), plugin.SocketID{}, false}, // this process accepts
		{path("own"), other, true},
		{path("file"), other, false},
		{path("none"), other, false},
	} {
		if got, err := IsAnothers(c.path, c.id); got != c.want || errors.Is(err, fs.ErrNotExist) != (c.path == path("none")) {
			t.Errorf("%s, bound %v: got %v, error %v", c.path, c.id, got, err)
		}
	}
}
