package dirwatch

import "github.com/patchbay-dev/patchbay/internal/sock"

// crowd counts the directories that are searched, of each user and in all, but for the roots: each costs a watch, of which the system has
// so many for a user, and memory.
type crowd struct {
	byUser map[uint32]int
	sum    int
	// freed says that one was given back since the last safety scan: there may be room for what was left out.
	freed bool
}

// room says whether one more directory of a user may be searched. The last places are for those of the host's own.
func (t *tree) room(uid uint32) bool {
	most := t.cfg.MaxDirs
	if !t.cfg.Privileged(uid) {
		most -= min(t.cfg.MaxUserDirs, t.cfg.MaxDirs/2)
	}
	return t.crowd.byUser[uid] < t.cfg.MaxUserDirs && t.crowd.sum < most
}

// count takes a directory into the count as one of a user's, if there is room.
func (t *tree) count(d *dir, uid uint32) bool {
	if d.counted && d.owner == uid {
		return true
	}
	t.uncount(d)
	d.owner = uid
	if !t.room(uid) {
		return false
	}
	d.counted = true
	t.crowd.byUser[uid]++
	t.crowd.sum++
	return true
}

func (t *tree) uncount(d *dir) {
	if !d.counted {
		return
	}
	d.counted = false
	t.crowd.sum--
	t.crowd.freed = true
	if t.crowd.byUser[d.owner]--; t.crowd.byUser[d.owner] == 0 {
		delete(t.crowd.byUser, d.owner)
	}
}

// leaveOut notes that a directory in parent is beyond the bounds.
func (t *tree) leaveOut(parent *dir, uid uint32) {
	if parent.leftOut == nil {
		parent.leftOut = map[uint32]int{}
	}
	parent.leftOut[uid]++
	t.changed = true
	t.track(parent)
}

// mayHaveRoom says whether what was left out of a directory has to be looked for.
func (t *tree) mayHaveRoom(d *dir) bool { return t.crowd.freed && len(d.leftOut) > 0 }

// owned says whose a directory is for those who are told what is wrong with it, and whether that is the host's own affair.
func (t *tree) owned(d *dir) (uid uint32, own bool) {
	if d.tooMany { // sockets may be others' than the directory
		return t.mostSockets(d)
	}
	return d.owner, d.parent == nil || t.cfg.Privileged(d.owner)
}

// mostSockets returns who has most of the sockets in a directory.
func (t *tree) mostSockets(d *dir) (uid uint32, own bool) {
	n := map[uint32]int{}
	for _, e := range d.socks {
		n[e.info.UID]++
		if n[e.info.UID] > n[uid] {
			uid = e.info.UID
		}
	}
	return uid, t.cfg.Privileged(uid)
}

// everybody is the default of Config.Privileged.
func everybody(uint32) bool { return true }

// trusted is the default of Config.Trust.
func trusted(string, sock.Info) error { return nil }
