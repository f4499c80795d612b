package dirwatch

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Condition is something that hinders the watcher at present. Facts stay true while it lasts, but they may be late or incomplete.
type Condition struct {
	Path   string // the file or directory that is concerned
	Reason string // what is wrong, what the watcher does instead, and what to do about it
	// Key is what a condition has as long as it lasts, while its Reason may come to say other numbers. No two with one Path have the same.
	Key string
	// Minor says that what is the host's own is found all the same: it is about directories or sockets of users who are not privileged,
	// about a file system that is not searched, or will soon be over.
	Minor bool
	Since time.Time // when it began
}

// ID is the same as long as a condition lasts.
func (c Condition) ID() [2]string { return [2]string{c.Path, c.Key} }

// maxConditions bounds the list: with a full watch limit, any number of directories may be concerned.
const maxConditions = 100

// crowdKey begins the Key of a condition that directories are beyond the bounds.
const crowdKey = "crowd"

// OfCrowd says whether the condition is that a user has more directories than are searched.
func (c Condition) OfCrowd() bool { return strings.HasPrefix(c.Key, crowdKey) }

// refreshConditions updates the list of conditions and reports whether it changed.
func (t *tree) refreshConditions() bool {
	list := t.others()
	if t.notifier == nil {
		const text = "file events are not available (%v): directories are looked at every %v"
		reason := t.unwatched(text, t.notifierErr)
		list = append(list, Condition{Path: t.roots[0].path, Reason: reason, Key: reason})
	}
	if !t.lostAt.IsZero() {
		const text = "file events came faster than they could be handled and some were lost; a scan makes up for them"
		list = append(list, Condition{Path: t.roots[0].path, Reason: text, Key: text, Minor: true})
	}
	for _, d := range t.dirs {
		if _, own := t.owned(d); own {
			for _, reason := range t.wrong(d) {
				list = append(list, Condition{Path: d.path, Reason: reason, Key: reason, Minor: errors.Is(d.readErr, errForeign)})
			}
		}
		for name, r := range d.refused { // other users' refused directories must not degrade the host
			if name != "" && r.Info.Mode.IsDir() && t.cfg.Judge.Privileged(r.Info.UID) {
				list = append(list, Condition{Path: r.Path, Reason: r.Err.Error(), Key: r.Err.Error()})
			}
		}
	}
	known := map[[2]string]time.Time{}
	for _, c := range t.degraded {
		known[c.ID()] = c.Since
	}
	list = t.cut(list, known)
	for i, c := range list {
		list[i].Since = cmp.Or(known[c.ID()], time.Now())
	}
	if slices.Equal(list, t.degraded) {
		return false
	}
	t.degraded = list
	return true
}

// cut sorts a list of conditions and bounds it. Those that go on stay in it.
func (t *tree) cut(list []Condition, known map[[2]string]time.Time) []Condition {
	isNew := func(c Condition) int {
		if known[c.ID()].IsZero() {
			return 1
		}
		return 0
	}
	byPath := func(a, b Condition) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Key, b.Key))
	}
	n := len(list) - maxConditions
	if n <= 0 {
		slices.SortFunc(list, byPath)
		return list
	}
	slices.SortFunc(list, func(a, b Condition) int { return cmp.Or(cmp.Compare(isNew(a), isNew(b)), byPath(a, b)) })
	list, rest := list[:maxConditions:maxConditions], list[maxConditions:]
	more := Condition{Path: t.roots[0].path, Reason: fmt.Sprintf("%d more directories are affected", n), Key: "more"}
	more.Minor = !slices.ContainsFunc(rest, func(c Condition) bool { return !c.Minor })
	slices.SortFunc(list, byPath)
	return append(list, more)
}

// others returns the conditions of the directories of users who are not privileged, one for each user and plugin directory, and those of
// all who have too many.
func (t *tree) others() []Condition {
	type group struct {
		root int
		uid  uint32
	}
	type trouble struct {
		n             int
		first, reason string
	}
	troubles, crowds := map[group]trouble{}, map[group]int{}
	for _, d := range t.dirs {
		for uid, n := range d.leftOut {
			crowds[group{d.root, uid}] += n
		}
		uid, own := t.owned(d)
		if own {
			continue
		}
		for _, reason := range t.wrong(d) {
			g := group{d.root, uid}
			of := troubles[g]
			if of.n++; of.n == 1 || d.path < of.first {
				of.first, of.reason = d.path, reason
			}
			troubles[g] = of
		}
	}
	var list []Condition
	for g, n := range crowds {
		list = append(list, Condition{Path: t.roots[g.root].path, Reason: fmt.Sprintf("%d directories of user %d are not searched: the limit is "+
			"%d for one user, and %d in all (bounds.maxUserDirs, bounds.maxDirs); remove what is not needed", n, g.uid, t.cfg.MaxUserDirs,
			t.cfg.MaxDirs),
			Key: fmt.Sprintf("%s %d", crowdKey, g.uid), Minor: !t.cfg.Judge.Privileged(g.uid)})
	}
	for g, of := range troubles {
		list = append(list, Condition{Path: t.roots[g.root].path, Reason: fmt.Sprintf("%d problems with directories and sockets of user %d; the "+
			"first with %s: %s", of.n, g.uid, of.first, of.reason), Key: fmt.Sprintf("user %d", g.uid), Minor: true})
	}
	return list
}

func (t *tree) wrong(d *dir) []string {
	var reasons []string
	if r := d.refused[""]; r != nil {
		reasons = append(reasons, r.Err.Error())
	} else if d.readErr != nil {
		reasons = append(reasons, explainRead(d.readErr))
	} else if t.notifier != nil && d.watchErr != nil {
		reasons = append(reasons, t.unwatched("the directory cannot be watched (%v): it is looked at every %v", d.watchErr))
	}
	if d.tooDeep {
		reasons = append(reasons, fmt.Sprintf("its subdirectories are not searched: they are more than %d levels "+
			"below the plugin directory; move the sockets up", t.cfg.MaxDepth))
	}
	if d.tooMany {
		reasons = append(reasons, fmt.Sprintf("it has more than %d sockets and the others are ignored; remove dead ones", t.cfg.MaxSockets))
	}
	return reasons
}

// unwatched says what is done instead of watching, in a text with room for the error and the interval.
func (t *tree) unwatched(text string, err error) string {
	hint := ""
	switch {
	case errors.Is(err, syscall.EMFILE):
		hint = "; raise the sysctl fs.inotify.max_user_instances or the limit of open files (ulimit -n)"
	case errors.Is(err, syscall.ENOSPC):
		hint = "; raise the sysctl fs.inotify.max_user_watches"
	}
	return fmt.Sprintf(text, err, t.cfg.pollInterval) + hint
}

func explainRead(err error) string {
	switch {
	case errors.Is(err, errForeign):
		return "the file system that is mounted here is not searched, because it may not answer; use a local directory, or make a directory on " +
			"that file system a plugin directory of its own"
	case errors.Is(err, fs.ErrNotExist):
		return "the directory does not exist; create it, it is picked up at once"
	case errors.Is(err, syscall.ENOTDIR):
		return "it is not a directory; remove it and create a directory, which is picked up at once"
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("the directory cannot be searched (%v); give this user read and search permission on it", err)
	default:
		return fmt.Sprintf("the directory cannot be read (%v); it will be tried again", err)
	}
}
