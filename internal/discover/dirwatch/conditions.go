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

// Condition is a problem that currently restricts the watcher. Facts stay true while it lasts, but they may be late or incomplete.
type Condition struct {
	Path   string // the affected file or directory
	Reason string // the problem, what the watcher does instead, and the remedy
	// Key identifies the condition among those with the same Path. Unlike Reason, it does not change while the condition lasts.
	Key string
	// Minor is true if privileged users are not affected: the condition concerns directories or sockets of other users, or a file system
	// that is not searched, or will end soon.
	Minor bool
	Since time.Time
}

// ID identifies the condition while it lasts.
func (c Condition) ID() [2]string { return [2]string{c.Path, c.Key} }

// maxConditions bounds the list: if no watches are left, any number of directories can be affected.
const maxConditions = 100

// dirLimitKey is the prefix of the Key of a condition about too many directories.
const dirLimitKey = "crowd"

// IsDirLimit reports whether the condition is that a user has more directories than are searched.
func (c Condition) IsDirLimit() bool { return strings.HasPrefix(c.Key, dirLimitKey) }

// refreshConditions updates the list of conditions and reports whether it changed.
func (t *tree) refreshConditions() bool {
	list := t.groupedConditions()
	if t.notifier == nil {
		const text = "file events are not available (%v): directories are checked every %v"
		reason := t.unwatched(text, t.notifierErr)
		list = append(list, Condition{Path: t.roots[0].path, Reason: reason, Key: reason})
	}
	if !t.lostAt.IsZero() {
		const text = "file events came faster than they could be handled and some were lost; a scan finds the changes"
		list = append(list, Condition{Path: t.roots[0].path, Reason: text, Key: text, Minor: true})
	}
	for _, d := range t.dirs {
		if _, own := t.ownerOf(d); own {
			for _, reason := range t.problemsOf(d) {
				list = append(list, Condition{Path: d.path, Reason: reason, Key: reason, Minor: errors.Is(d.readErr, errForeign)})
			}
		}
		for name, r := range d.refused { // other users' refused directories must not degrade the host
			if name != "" && r.Info.Mode.IsDir() && t.w.Judge.Privileged(r.Info.UID) {
				list = append(list, Condition{Path: r.Path, Reason: r.Err.Error(), Key: r.Err.Error()})
			}
		}
	}
	known := map[[2]string]time.Time{}
	for _, c := range t.degraded {
		known[c.ID()] = c.Since
	}
	list = t.limitConditions(list, known)
	for i, c := range list {
		list[i].Since = cmp.Or(known[c.ID()], time.Now())
	}
	if slices.Equal(list, t.degraded) {
		return false
	}
	t.degraded = list
	return true
}

// limitConditions sorts a list of conditions and bounds it. Conditions that are known already have precedence.
func (t *tree) limitConditions(list []Condition, known map[[2]string]time.Time) []Condition {
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

// groupedConditions returns conditions for each user and root: one for all problems with directories of a user who is not privileged, and
// one for directories beyond the limits.
func (t *tree) groupedConditions() []Condition {
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
		for uid, n := range d.overLimit {
			crowds[group{d.root, uid}] += n
		}
		uid, own := t.ownerOf(d)
		if own {
			continue
		}
		for _, reason := range t.problemsOf(d) {
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
			"%d for one user, and %d in all (bounds.maxUserDirs, bounds.maxDirs); remove what is not needed", n, g.uid, t.w.MaxUserDirs,
			t.w.MaxDirs),
			Key: fmt.Sprintf("%s %d", dirLimitKey, g.uid), Minor: !t.w.Judge.Privileged(g.uid)})
	}
	for g, of := range troubles {
		list = append(list, Condition{Path: t.roots[g.root].path, Reason: fmt.Sprintf("%d problems with directories and sockets of user %d; the "+
			"first with %s: %s", of.n, g.uid, of.first, of.reason), Key: fmt.Sprintf("user %d", g.uid), Minor: true})
	}
	return list
}

func (t *tree) problemsOf(d *dir) []string {
	var reasons []string
	if r := d.refused[""]; r != nil {
		reasons = append(reasons, r.Err.Error())
	} else if d.readErr != nil {
		reasons = append(reasons, explainRead(d.readErr))
	} else if t.notifier != nil && d.watchErr != nil {
		reasons = append(reasons, t.unwatched("the directory cannot be watched (%v): it is checked every %v", d.watchErr))
	}
	if d.tooDeep {
		reasons = append(reasons, fmt.Sprintf("its subdirectories are not searched: they are more than %d levels "+
			"below the plugin directory; move the sockets up", t.w.MaxDepth))
	}
	if d.tooMany {
		reasons = append(reasons, fmt.Sprintf("it has more than %d sockets and the others are ignored; remove dead ones", t.w.MaxSockets))
	}
	return reasons
}

// unwatched formats text with the error and the poll interval, and adds a hint for exhausted limits.
func (t *tree) unwatched(text string, err error) string {
	hint := ""
	switch {
	case errors.Is(err, syscall.EMFILE):
		hint = "; raise the sysctl fs.inotify.max_user_instances or the limit of open files (ulimit -n)"
	case errors.Is(err, syscall.ENOSPC):
		hint = "; raise the sysctl fs.inotify.max_user_watches"
	}
	return fmt.Sprintf(text, err, t.w.pollInterval) + hint
}

func explainRead(err error) string {
	switch {
	case errors.Is(err, errForeign):
		return "the file system that is mounted here is not searched, because it may not answer; use a local directory, or configure a " +
			"directory on that file system as a plugin directory"
	case errors.Is(err, fs.ErrNotExist):
		return "the directory does not exist; create it, and it is used immediately"
	case errors.Is(err, syscall.ENOTDIR):
		return "it is not a directory; remove it and create a directory, which is used immediately"
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("the directory cannot be searched (%v); give this user read and search permission on it", err)
	default:
		return fmt.Sprintf("the directory cannot be read (%v); it will be tried again", err)
	}
}
