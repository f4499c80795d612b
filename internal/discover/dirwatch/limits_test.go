package dirwatch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// crowded is a rig in which four directories are searched of a user who is not privileged, and the test's user is none.
func crowded(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, "r")
	r.quick()
	r.w.MaxUserDirs, r.w.MaxDirs = 4, 100
	r.w.Judge = judge{}
	return r
}

// minors says how many conditions there are, and fails the test if one of them is not minor.
func (r *rig) minors() (n int) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.update.Degraded {
		if !c.Minor {
			r.t.Errorf("condition %+v", c)
		}
	}
	return len(r.update.Degraded)
}

// TestCrowd has a user make more directories than are searched of one, before the watcher starts and while it runs, flat and one in another.
func TestCrowd(t *testing.T) {
	of := fmt.Sprintf("directories of user %d are not searched", os.Getuid())
	for name, script := range map[string]string{
		"flat": `
			> mkdir r/a/a; mkdir r/b; mkdir r/c; mkdir r/d; start; degraded r 1 OF; quiet; mkdir r/e; degraded r 2 OF; mkdir r/f
			> degraded r 3 OF; chmod 700 r/e; chmod 755 r/e; degraded r 3 OF; quiet`,
		"nested":       `> mkdir r/a/b/c/d/e/f; start; degraded r 1 OF; mkdir r/a/b/c/d/g; degraded r 2 OF`,
		"made later":   `> mkdir r; start; mkdir r/a/b/c/d/e; degraded r 1 OF; quiet; rmall r/a; degraded r`,
		"room is made": `> mkdir r/a; mkdir r/b; mkdir r/c; mkdir r/d; start; mkdir r/e; sock r/e/x; degraded r 1 OF; rmall r/b` + "\n+r/e/x\n> degraded r; quiet",
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			r := crowded(t)
			r.run(strings.ReplaceAll(script, "OF", of))
			if n := r.minors(); n > 1 {
				t.Errorf("there are %d conditions", n)
			}
		})
	}
}

// TestRoomElsewhere has room be made in another directory than the one in which there was none, so that nothing tells of a change there.
func TestRoomElsewhere(t *testing.T) {
	r := crowded(t)
	r.do("mkdir r/a/1; mkdir r/b/1; start; mkdir r/a/2; sock r/a/2/x; degraded r are not searched")
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(r.dir, "r", "a"), long, long); err != nil {
		t.Fatal(err)
	}
	r.do("quiet; quiet; rmall r/b/1")
	r.want("+r/a/2/x")
	r.degraded("r", "")
}

// TestRoomMadeDuringScan has a safety scan be the first to see that there is room, after it has looked at what was left out.
func TestRoomMadeDuringScan(t *testing.T) {
	r := crowded(t)
	r.do("mkdir r/a/1; mkdir r/b/1")
	deaf := &notifier{add: func(string) error { return nil }, remove: func(string) error { return nil }, close: func() error { return nil }}
	r.w.open = func() (*notifier, error) { return deaf, nil }
	tree := newTree(r.w)
	defer tree.closeMounts()
	tree.safetyScan()
	r.do("mkdir r/a/2; sock r/a/2/x")
	tree.safetyScan()
	a := tree.roots[0].dirs["a"]
	if len(a.overLimit) != 1 {
		t.Fatalf("left out are %v", a.overLimit)
	}
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(a.path, long, long); err != nil {
		t.Fatal(err)
	}
	tree.safetyScan()
	r.do("rmall r/b/1")
	tree.safetyScan()
	tree.safetyScan()
	if len(a.overLimit) > 0 || tree.socks[filepath.Join(a.path, "2", "x")] == nil {
		t.Errorf("still left out are %v", a.overLimit)
	}
}

// TestCrowdHasNoWatches counts the watches of a crowd.
func TestCrowdHasNoWatches(t *testing.T) {
	r := crowded(t)
	f := r.fakeEvents()
	r.w.scanInterval = time.Hour
	for i := range 1_000 {
		if err := os.MkdirAll(filepath.Join(r.dir, "r", "a", fmt.Sprint(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.start()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.calls) != 1+r.w.MaxUserDirs {
		t.Errorf("%d directories are watched: %q", len(f.calls), f.calls)
	}
}

// TestRoomForTheHostsOwn sees that others cannot use up what there is in all.
func TestRoomForTheHostsOwn(t *testing.T) {
	const self = 7
	w := newWatcher(t, func(Update) {}, Root{Path: "/r"})
	w.MaxUserDirs, w.MaxDirs, w.Judge = 10, 30, judge{privileged: self}
	tree := newTree(w)
	taken := map[uint32]int{}
	for uid := range uint32(7) { // 0 to 6, before the host's own
		for i := range 12 {
			if tree.addDir(tree.roots[0], fmt.Sprint(uid, i), uid) != nil {
				taken[uid]++
			}
		}
	}
	for i := range 12 {
		if tree.addDir(tree.roots[0], fmt.Sprint(self, i), self) != nil {
			taken[self]++
		}
	}
	if want := map[uint32]int{0: 10, 1: 10, self: 10}; fmt.Sprint(taken) != fmt.Sprint(want) {
		t.Errorf("searched by user: %v, want %v", taken, want)
	}
	tree.drop(tree.roots[0], removed)
	if n := tree.dirQuota.Sum(); n != 0 {
		t.Errorf("when all are gone, there are %d", n)
	}
}

// TestTroubleOfOthersIsOneCondition has many directories of a user who is not privileged be wrong.
func TestTroubleOfOthersIsOneCondition(t *testing.T) {
	r := newRig(t, "r")
	r.quick()
	r.w.MaxDepth = 1
	r.w.Judge = judge{}
	for i := range 300 {
		if err := os.MkdirAll(filepath.Join(r.dir, "r", fmt.Sprintf("d%03d", i), "x"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.do("start; degraded r 300 problems")
	if n := r.minors(); n != 1 {
		t.Errorf("there are %d conditions", n)
	}
	r.mu.Lock()
	before := r.update.Degraded[0]
	r.mu.Unlock()
	r.do("mkdir r/c/x; degraded r 301 problems")
	if after := r.update.Degraded[0]; after.Key != before.Key || after.Path != before.Path {
		t.Errorf("after %+v comes %+v, as another one", before, after)
	}
}

// TestManyConditions has more directories of the host's own be wrong than are told: those that were told stay.
func TestManyConditions(t *testing.T) {
	r := newRig(t, "r")
	r.quick()
	r.w.MaxDepth = 1
	for i := range maxConditions {
		r.do(fmt.Sprintf("mkdir r/m%03d/x", i))
	}
	r.do("start; degraded r/m000 levels; mkdir r/a/x; degraded r 1 more")
	r.degraded("r/m099", "levels")
	r.degraded("r/a", "")
}

// TestRefusalsOfOneUser has one user have more refused than is remembered of one: another's refusals are remembered all the same.
func TestRefusalsOfOneUser(t *testing.T) {
	w := newWatcher(t, func(Update) {}, Root{Path: "/r"})
	w.Judge = judge{}
	tree := newTree(w)
	root, no := tree.roots[0], errors.New("no")
	for _, uid := range []uint32{1, 2, 3} {
		for i := range 2 * maxRefused {
			tree.recordRefusal(root, fmt.Sprint(uid, "-", i), sock.Info{UID: uid}, no)
		}
	}
	tree.refreshRefused()
	n := map[uint32]int{}
	for _, r := range tree.refused {
		n[r.Info.UID]++
	}
	if want := map[uint32]int{1: maxUserRefused, 2: maxUserRefused, 3: maxUserRefused}; fmt.Sprint(n) != fmt.Sprint(want) {
		t.Errorf("remembered by user: %v, want %v", n, want)
	}
	tree.drop(root, removed)
	if tree.refreshRefused(); tree.refusals.Sum() != 0 || len(tree.refused) != 0 {
		t.Errorf("when all are gone, %d are remembered", len(tree.refused))
	}
}
