package dirwatch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestClockSteps has the times of directories jump to and fro, as they do when the wall clock steps, while only scans can notice changes.
func TestClockSteps(t *testing.T) {
	r := newRig(t, "r")
	r.quick()
	r.w.open = func() (*notifier, error) { return nil, os.ErrInvalid }
	r.do("mkdir r/a; start")
	for i, step := range []time.Duration{24 * time.Hour, -24 * time.Hour, -365 * 24 * time.Hour, 0} {
		name := string(rune('p' + i))
		r.do("sock r/a/" + name)
		if err := os.Chtimes(filepath.Join(r.dir, "r/a"), time.Time{}, time.Now().Add(step)); err != nil {
			t.Fatal(err)
		}
		r.want("+r/a/" + name)
	}
	r.quiet()
}

// TestBirthsAreIdentity has sockets whose births contradict the order in which they appear.
func TestBirthsAreIdentity(t *testing.T) {
	var facts []Fact
	tree := newTree(newWatcher(t, func(u Update) { facts = append(facts, u.Facts...) }, Root{Path: "/r"}))
	root := tree.roots[0]
	appear := func(name string, inode uint64, birth time.Duration, why cause) []Fact {
		facts = nil
		info := sock.Info{ID: plugin.SocketID{Device: 1, Inode: inode, Birth: time.Now().Add(birth).UnixNano()}, Mode: os.ModeSocket}
		tree.addSocket(root, name, "/r/"+name, info, why)
		tree.flush()
		return facts
	}
	if got := appear("x", 1, time.Hour, created); len(got) != 1 || !got[0].Present {
		t.Errorf("born in the future: %+v", got)
	}
	if got := appear("y", 2, -time.Hour, created); len(got) != 1 || !got[0].Present || got[0].MovedFrom != "" {
		t.Errorf("born in the past, and later: %+v", got)
	}
	before := tree.socks["/r/x"].info.ID
	if got := appear("x", 1, -time.Hour, created); len(got) != 1 || !got[0].Present || got[0].MovedFrom != "" || got[0].Info.ID == before {
		t.Errorf("made again on the same inode, and born before the old one: %+v", got)
	}
}

// TestMomentsAreMonotonic sees that the moments on which timers depend carry a reading of the monotonic clock, which does not step.
func TestMomentsAreMonotonic(t *testing.T) {
	w := newWatcher(t, func(Update) {}, Root{Path: t.TempDir()})
	w.open = func() (*notifier, error) { return nil, os.ErrInvalid }
	tree := newTree(w)
	tree.openNotifier()
	tree.scanAll()
	tree.planScan()
	tree.handleLost()
	e := &entry{path: "/x", dir: tree.roots[0]}
	tree.socks["/x"] = e
	tree.hold(e)
	for name, moment := range map[string]time.Time{
		"next look": tree.pollAt, "next safety scan": tree.scanDeadline(), "next scan after a loss": tree.syncAt, "end of a hold": tree.holdDeadline(),
	} {
		if !strings.Contains(moment.String(), " m=") {
			t.Errorf("%s is %v", name, moment)
		}
	}
}
