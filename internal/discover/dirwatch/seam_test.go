package dirwatch

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// fake is a source of events that tells only what the test has it tell, and records which watches were set and given up.
type fake struct {
	r      *rig
	events chan event

	mu    sync.Mutex
	calls []string
}

// fakeEvents puts a fake into the rig.
func (r *rig) fakeEvents() *fake {
	f := &fake{r: r, events: make(chan event)}
	record := func(call string) func(string) error {
		return func(path string) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			rel, err := filepath.Rel(r.dir, path)
			f.calls = append(f.calls, call+" "+rel)
			return err
		}
	}
	r.w.open = func() (*notifier, error) {
		return &notifier{events: f.events, add: record("add"), remove: record("remove"), close: func() error { return nil }}, nil
	}
	return f
}

func (f *fake) send(op fsnotify.Op, path string) {
	f.events <- event{Name: filepath.Join(f.r.dir, path), Op: op}
}

// want checks that the watches were set and given up in this order since the last time.
func (f *fake) want(calls ...string) {
	f.r.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.calls, calls) {
		f.r.t.Errorf("watches: %s; want %s", strings.Join(f.calls, ", "), strings.Join(calls, ", "))
	}
	f.calls = nil
}

// TestWatchIsRenewed has a watch that tells nothing: when a scan finds what it should have told, it is made again.
func TestWatchIsRenewed(t *testing.T) {
	r := newRig(t, "r")
	f := r.fakeEvents()
	r.w.scanInterval = 10 * time.Millisecond
	r.do("mkdir r/a; sock r/a/x; start")
	r.want("+r/a/x")
	f.want("add r", "add r/a")
	r.do("sock r/a/y")
	r.want("+r/a/y")
	f.want("remove r/a", "add r/a")
}

// TestWatchMovesWithDirectory has a scan notice a renamed directory before its events come. The watch must be given up under the old name
// first, or its events go on to carry it.
func TestWatchMovesWithDirectory(t *testing.T) {
	r := newRig(t, "r")
	f := r.fakeEvents()
	r.w.scanInterval = 10 * time.Millisecond
	r.do("mkdir r/b/c; sock r/b/c/x; start")
	r.want("+r/b/c/x")
	f.want("add r", "add r/b", "add r/b/c")
	r.do("mv r/b/c r/a")
	r.want("+r/a/x<r/b/c/x")
	f.mu.Lock()
	defer f.mu.Unlock()
	if i, j := slices.Index(f.calls, "remove r/b/c"), slices.Index(f.calls, "add r/a"); i < 0 || j < 0 || i > j {
		t.Errorf("watches: %q", f.calls)
	}
}

// TestRemovalRenewsWatch has a directory that was removed and made again before the event of its removal is handled.
func TestRemovalRenewsWatch(t *testing.T) {
	r := newRig(t, "r")
	f := r.fakeEvents()
	r.w.scanInterval = time.Hour
	r.do("mkdir r/a/b; sock r/a/b/x; start")
	r.want("+r/a/b/x")
	f.want("add r", "add r/a", "add r/a/b")
	f.send(fsnotify.Remove, "r/a")
	r.do("sock r/y")
	f.send(fsnotify.Create, "r/y")
	r.want("+r/y")
	f.want("remove r/a", "add r/a", "remove r/a/b", "add r/a/b")
}

// TestHintsAreNotFacts sends events that are late, doubled or wrong.
func TestHintsAreNotFacts(t *testing.T) {
	r := newRig(t, "r")
	f := r.fakeEvents()
	r.w.scanInterval = time.Hour
	r.do("mkdir r/a; mkdir out; sock r/x; start")
	r.want("+r/x")
	for _, op := range []fsnotify.Op{fsnotify.Create, fsnotify.Write, fsnotify.Chmod, fsnotify.Rename} {
		for _, path := range []string{"r/x", "r/none", "r/a", "r/a/none", "r", "r/none/none", "out/x", ".", "/"} {
			f.send(op, path)
		}
	}
	f.send(fsnotify.Remove, "r/none")
	f.send(fsnotify.Remove, "r")

	r.do("mv r/x out/x; sock r/x")
	f.send(fsnotify.Rename, "r/x") // and the event of the new one is late
	r.want("*r/x")

	f.send(fsnotify.Remove, "r/x") // as if it had been removed and made again within one tick of the clock
	r.want("-r/x", "+r/x")

	r.do("rm r/x")
	f.send(fsnotify.Create, "r/x")
	r.want("-r/x")
}
