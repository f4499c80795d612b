package dirwatch

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/mounttest"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// TestHungMount reproduces PAINS 110: a file system below a root that does not answer hides no other socket, whether it was mounted before
// or after the start, also over a directory that is known.
func TestHungMount(t *testing.T) {
	if !mounttest.Isolated(t) {
		return
	}
	r := newRig(t, "r")
	r.do("mkdir r/before; mkdir r/after; sock r/x; sock r/after/y")
	healBefore := mounttest.Hang(t, filepath.Join(r.dir, "r/before"))
	r.start()
	r.settleHung("r/x", "r/after/y")
	r.degraded("r/before", "not searched")

	healAfter := mounttest.Hang(t, filepath.Join(r.dir, "r/after"))
	r.settleHung("r/x")
	r.do("sock r/z; mkdir r/d; sock r/d/s")
	r.settleHung("r/x", "r/z", "r/d/s")
	r.degraded("r/after", "not searched")

	healBefore()
	healAfter()
	r.settleHung("r/x", "r/z", "r/d/s", "r/after/y")
	r.degraded("r/before", "")
	r.degraded("r/after", "")
	r.do("sock r/before/w")
	r.settleHung("r/x", "r/z", "r/d/s", "r/after/y", "r/before/w")
	r.quiet()
}

// TestForeignAfterError: a file system that may not answer is not entered either after another error, such as that its parent could not be
// searched for a while.
func TestForeignAfterError(t *testing.T) {
	if !mounttest.Isolated(t) {
		return
	}
	r := newRig(t, "r")
	r.do("mkdir r/a")
	defer mounttest.Hang(t, filepath.Join(r.dir, "r/a"))()
	tree := newTree(r.w)
	defer tree.closeNotifier()
	defer func() { tree.closeMounts() }()
	tree.safetyScan()
	d := tree.dirs[filepath.Join(r.dir, "r/a")]
	tree.visitFailed(d, sock.Entry{}, fs.ErrPermission)
	tree.safetyScan()
	if !errors.Is(d.readErr, errForeign) {
		t.Errorf("the directory is searched: %v", d.readErr)
	}
	if tree.refreshConditions(); len(tree.degraded) != 1 || !tree.degraded[0].Minor {
		t.Errorf("conditions: %+v", tree.degraded)
	}
}

// TestMountOverRefused checks that a refused directory is not listed as long as a file system that does not answer hides it.
func TestMountOverRefused(t *testing.T) {
	if !mounttest.Isolated(t) {
		return
	}
	r := newRig(t, "r")
	r.do("mkdir r/d")
	path := filepath.Join(r.dir, "r/d")
	r.w.Judge = judge{refused: path}
	r.start()
	r.await("the directory to be refused", func() bool { return len(r.update.Refused) == 1 })
	heal := mounttest.Hang(t, path)
	r.await("the refusal to be forgotten", func() bool { return len(r.update.Refused) == 0 })
	heal()
	r.await("the directory to be refused again", func() bool { return len(r.update.Refused) == 1 })
}

// settleHung waits until exactly these sockets are known, without a look at the tree, which would hang too.
func (r *rig) settleHung(paths ...string) {
	r.t.Helper()
	r.await("the sockets to be known", func() bool {
		r.facts = nil
		for _, p := range paths {
			if _, ok := r.state[filepath.Join(r.dir, p)]; !ok {
				return false
			}
		}
		return len(r.state) == len(paths)
	})
}
