package dirwatch

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestSettled: safety scans are rare as long as events can be expected to tell everything, and not a moment longer.
func TestSettled(t *testing.T) {
	r := newRig(t, "r")
	r.do("mkdir r/a; sock r/a/x")
	if !tellsAt(t, r.dir) {
		t.Skip("the temporary files are not on a file system that tells of every change")
	}
	distrusted := filepath.Join(r.dir, "r/b")
	r.w.MaxSockets, r.w.Judge = 2, judge{refused: distrusted}
	tree := newTree(r.w)
	defer tree.closeNotifier()
	defer func() { tree.closeMounts() }()
	expect := func(settled bool) {
		t.Helper()
		tree.safetyScan()
		if tree.settled() != settled {
			t.Errorf("settled is %v", !settled)
		}
		after := time.Until(tree.scanDeadline())
		if settled != (after > tree.w.scanInterval) {
			t.Errorf("the next scan is after %v", after)
		}
	}
	// age makes the time of a directory's last change one that its next change cannot have too.
	age := func() {
		for _, dir := range []string{"r", "r/a"} {
			if err := os.Chtimes(filepath.Join(r.dir, dir), time.Time{}, time.Now().Add(-time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
	}
	expect(false) // it was read just after it changed
	age()
	expect(true)
	r.do("sock r/b")
	age()
	expect(false) // something is refused
	r.do("rm r/b")
	age()
	expect(true)
	r.do("sock r/a/y; sock r/a/z")
	age()
	expect(false) // there are too many sockets: the one that is left out is found when another one has gone
	r.do("rm r/a/z")
	age()
	tree.safetyScan()
	tree.expireHolds(time.Now().Add(time.Hour))
	expect(true)
	if len(tree.socks) != 2 {
		t.Errorf("it knows %d sockets, want 2", len(tree.socks))
	}
	for name, end := range map[string]func(){"events": tree.closeNotifier, "mounts": tree.closeMounts} {
		end()
		if tree.settled() {
			t.Errorf("it is settled without a source of %s", name)
		}
		expect(true)
	}
	r.do("mv r s; symlink s r")
	tree.scanAll()
	expect(false) // the root may lead elsewhere
	r.do("rm r; mv s r")
	tree.scanAll()
	expect(true)
	r.do("rmall r")
	expect(false) // the root is missing
}

// TestSilentFileSystem: a tree is not settled if others may change what is in it.
func TestSilentFileSystem(t *testing.T) {
	tree := newTree(newWatcher(t, func(Update) {}, Root{Path: "/proc/tty"}))
	defer tree.closeNotifier()
	defer tree.closeMounts()
	tree.safetyScan()
	for _, d := range tree.dirs {
		if d.reread = false; !d.watched || d.readErr != nil {
			t.Errorf("%s is watched: %v, read: %v", d.path, d.watched, d.readErr)
		}
		tree.track(d)
	}
	if tree.settled() || len(tree.incomplete) != len(tree.dirs) {
		t.Errorf("it is settled: %v, with %d of %d directories", tree.settled(), len(tree.incomplete), len(tree.dirs))
	}
}

// TestTells: what others change without a word is looked at as often as before.
func TestTells(t *testing.T) {
	if tellsAt(t, "/proc") {
		t.Error("/proc tells of every change")
	}
	closed, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	if hasAllEvents(closed) {
		t.Error("a directory that cannot be asked tells of every change")
	}
}

func tellsAt(t *testing.T, path string) bool {
	t.Helper()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	return hasAllEvents(dir)
}
