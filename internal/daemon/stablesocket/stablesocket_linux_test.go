package stablesocket

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// TestStableSocketsAtRest counts what many sockets cost that nobody uses.
func TestStableSocketsAtRest(t *testing.T) {
	const sockets = 100
	count := func() (files, goroutines int) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries), runtime.NumGoroutine()
	}
	b := newBed(t, nil)
	one := b.serve("one")
	b.register("T", "first", one)
	b.socket("T", "first", true)
	files, goroutines := count()
	for i := range sockets {
		b.register("T", fmt.Sprint(i), one)
	}
	for i := range sockets {
		b.socket("T", fmt.Sprint(i), true)
	}
	const slack = sockets / 10 // for what had not begun or ended when it was counted
	until(t, "no more than a descriptor and a goroutine each", func() bool {
		f, g := count()
		return f <= files+sockets+slack && g <= goroutines+sockets+slack
	})
}

// TestStableSocketsBelongToTheGroupOfTheDirectory has a directory with the set-group-ID bit.
func TestStableSocketsBelongToTheGroupOfTheDirectory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have another group")
	}
	const group = 4242
	b := newBed(t, func(d *Sockets) {
		if err := os.Chown(d.Dir, 0, group); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(d.Dir, os.ModeSetgid|0o750); err != nil {
			t.Fatal(err)
		}
	})
	b.register("T", "n", b.serve("one"))
	path := b.socket("T", "n", true)
	for _, path := range []string{path, filepath.Dir(path)} {
		if info, err := sock.Stat(path); err != nil || info.GID != group {
			t.Errorf("%s belongs to group %d, %v", path, info.GID, err)
		}
	}
}

// TestStableSocketsOfOthers finds sockets on which nobody accepts, one of another user.
func TestStableSocketsOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	b := newBed(t, func(d *Sockets) {
		for name, uid := range map[string]int{"ours": 0, "theirs": 65534} {
			path := socketPath(d.Dir, named("T", name))
			leave(t, path)
			if err := os.Chown(path, uid, uid); err != nil {
				t.Fatal(err)
			}
		}
	})
	b.register("T", "n", b.serve("one"))
	b.socket("T", "ours", false)
	b.stopRun() // when all have been looked at
	b.socket("T", "theirs", true)
}
