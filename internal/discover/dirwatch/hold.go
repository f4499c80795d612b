package dirwatch

import "time"

// heldEntry is an entry with the end of its hold. The hold may have been cancelled since.
type heldEntry struct {
	entry *entry
	until time.Time
}

// hold delays the fact that a socket is gone by renameHold, because it may have been renamed.
func (t *tree) hold(e *entry) {
	if !e.held.IsZero() {
		return
	}
	e.held = time.Now().Add(t.w.renameHold)
	t.holds = append(t.holds, heldEntry{e, e.held})
}

func (t *tree) holdDeadline() time.Time {
	for ; len(t.holds) > 0; t.holds = t.holds[1:] {
		if h := t.holds[0]; t.socks[h.entry.path] == h.entry && h.entry.held.Equal(h.until) {
			return h.until
		}
	}
	t.holds = nil
	return time.Time{}
}

// expireHolds handles the holds that have ended: it checks the path again, and reports that the socket is gone if it is still absent.
func (t *tree) expireHolds(now time.Time) {
	for {
		until := t.holdDeadline()
		if until.IsZero() || until.After(now) {
			return
		}
		e := t.holds[0].entry
		t.holds = t.holds[1:]
		if t.known(e.dir) {
			t.update(e.dir, e.name, removed)
		}
		if t.socks[e.path] == e && e.held.Equal(until) {
			t.removeSocket(e, removed)
		}
	}
}
