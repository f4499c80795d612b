package dirwatch

// count takes a directory, which is no root, into the count as one of a user's, if there is room. Each that is searched costs a watch, of
// which the system has so many for a user, and memory.
func (t *tree) count(d *dir, uid uint32) bool {
	if d.counted && d.owner == uid {
		return true
	}
	t.uncount(d)
	d.owner = uid
	d.counted = t.crowd.Take(uid, 1) == nil
	return d.counted
}

func (t *tree) uncount(d *dir) {
	if d.counted {
		d.counted = false
		t.freed++
		t.crowd.Release(d.owner, 1)
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
func (t *tree) mayHaveRoom(d *dir) bool { return t.freed != t.sought && len(d.leftOut) > 0 }

// owned says whose a directory is for those who are told what is wrong with it, and whether that is the host's own affair.
func (t *tree) owned(d *dir) (uid uint32, own bool) {
	if d.tooMany { // sockets may be others' than the directory
		return t.mostSockets(d)
	}
	return d.owner, d.parent == nil || t.cfg.Judge.Privileged(d.owner)
}

func (t *tree) mostSockets(d *dir) (uid uint32, own bool) {
	n := map[uint32]int{}
	for _, e := range d.socks {
		n[e.info.UID]++
		if n[e.info.UID] > n[uid] {
			uid = e.info.UID
		}
	}
	return uid, t.cfg.Judge.Privileged(uid)
}
