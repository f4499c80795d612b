package dirwatch

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
)

// Condition is something that hinders the watcher at present. Facts stay true while it lasts, but they may be late or incomplete.
type Condition struct {
	Path   string // the file or directory that is concerned
	Reason string // what is wrong, what the watcher does instead, and what to do about it
}

// maxConditions bounds the list: with a full watch limit, any number of directories may be concerned.
const maxConditions = 100

// refreshConditions makes the list of conditions anew and reports whether it is another one.
func (t *tree) refreshConditions() bool {
	var list []Condition
	if t.notifier == nil {
		const text = "file events are not available (%v): directories are looked at every %v"
		list = append(list, Condition{t.roots[0].path, t.unwatched(text, t.notifierErr)})
	}
	if !t.lostAt.IsZero() {
		list = append(list, Condition{t.roots[0].path, "file events came faster than they could be handled and some were lost; " +
			"a scan makes up for them"})
	}
	for _, d := range t.dirs {
		if r := d.refused[""]; r != nil {
			list = append(list, Condition{d.path, r.Err.Error()})
		} else if d.readErr != nil {
			list = append(list, Condition{d.path, explainRead(d.readErr)})
		} else if t.notifier != nil && d.watchErr != nil {
			list = append(list, Condition{d.path, t.unwatched("the directory cannot be watched (%v): it is looked at every %v", d.watchErr)})
		}
		if d.tooDeep {
			list = append(list, Condition{d.path, fmt.Sprintf("its subdirectories are not searched: they are more than %d levels "+
				"below the plugin directory; move the sockets up", t.cfg.MaxDepth)})
		}
		if d.tooMany {
			list = append(list, Condition{d.path, fmt.Sprintf("it has more than %d sockets and the others are ignored; remove dead ones",
				t.cfg.MaxSockets)})
		}
	}
	slices.SortFunc(list, func(a, b Condition) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Reason, b.Reason))
	})
	if n := len(list) - maxConditions; n > 0 {
		list = append(list[:maxConditions], Condition{t.roots[0].path, fmt.Sprintf("%d more directories are concerned", n)})
	}
	if slices.Equal(list, t.degraded) {
		return false
	}
	t.degraded = list
	return true
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
	case errors.Is(err, fs.ErrNotExist):
		return "the directory does not exist; create it, it is picked up at once"
	case errors.Is(err, syscall.ENOTDIR):
		return "it is not a directory; remove it and create a directory, which is picked up at once"
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("the directory cannot be searched (%v); give this user read and search permission on it", err)
	default:
		return fmt.Sprintf("the directory cannot be read (%v); it is tried again", err)
	}
}
