package dirwatch

// takeQuota counts a directory below a root against the quota of a user and reports whether there was room. Each directory that is searched
// costs memory and an inotify watch, whose number is limited.
func (t *tree) takeQuota(d *dir, uid uint32) bool {
	if d.counted && d.owner == uid {
		return true
	}
	t.releaseQuota(d)
	d.owner = uid
	d.counted = t.dirQuota.Take(uid, 1) == nil
	return d.counted
}

func (t *tree) releaseQuota(d *dir) {
	if d.counted {
		d.counted = false
		t.freed++
		t.dirQuota.Release(d.owner, 1)
	}
}

// addOverLimit counts a directory in parent that is not searched because of the limits.
func (t *tree) addOverLimit(parent *dir, uid uint32) {
	if parent.overLimit == nil {
		parent.overLimit = map[uint32]int{}
	}
	parent.overLimit[uid]++
	t.changed = true
	t.track(parent)
}

// mayFitNow reports whether to check directories in d again that were over a limit, because other directories have released their quota.
func (t *tree) mayFitNow(d *dir) bool { return t.freed != t.freedAtScan && len(d.overLimit) > 0 }

// ownerOf returns the user who can fix problems with a directory, and whether that user is privileged.
func (t *tree) ownerOf(d *dir) (uid uint32, own bool) {
	if d.tooMany { // the sockets may belong to other users
		return t.mainSocketOwner(d)
	}
	return d.owner, d.parent == nil || t.w.Judge.Privileged(d.owner)
}

func (t *tree) mainSocketOwner(d *dir) (uid uint32, own bool) {
	n := map[uint32]int{}
	for _, e := range d.socks {
		n[e.info.UID]++
		if n[e.info.UID] > n[uid] {
			uid = e.info.UID
		}
	}
	return uid, t.w.Judge.Privileged(uid)
}
