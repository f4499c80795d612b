package dirwatch

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// drainLimit is how many events are handled before the next update.
const drainLimit = 256

func (t *tree) drain(events <-chan event) {
	for range drainLimit {
		select {
		case ev, ok := <-events:
			if !ok {
				t.closeNotifier()
				return
			}
			t.handle(ev)
		default:
			return
		}
	}
}

func (t *tree) handle(ev event) {
	// gofail: var dirwatchEvent struct{}
	// t.handleLost()
	// return
	if d := t.dirs[ev.Name]; d != nil {
		t.handleDir(d, ev)
		return
	}
	parent, name := t.split(ev.Name)
	if parent == nil || parent.refused[""] != nil || t.skip(parent, name) {
		return
	}
	start := len(t.facts)
	known := t.socks[ev.Name] != nil || parent.refused[name] != nil
	switch {
	case ev.Has(fsnotify.Create):
		t.update(parent, name, created)
	case known && ev.Has(fsnotify.Remove):
		t.update(parent, name, removed)
	case known && ev.Has(fsnotify.Rename):
		t.update(parent, name, renamed)
	case ev.Has(fsnotify.Chmod): // also for a refused file that exceeded maxRefused
		t.update(parent, name, scanned)
	}
	t.sortScan(start)
}

func (t *tree) handleDir(d *dir, ev event) {
	start := len(t.facts)
	switch {
	case ev.Has(fsnotify.Remove), ev.Has(fsnotify.Rename):
		// The watch has ended, or follows the directory to its new path.
		if _, err := t.stat(d); err == nil || errors.Is(err, errForeign) {
			t.visit(d, deep)
			break
		}
		why := removed
		if ev.Has(fsnotify.Rename) {
			why = renamed
		}
		t.drop(d, why)
		if d.parent == nil {
			t.visit(d, shallow)
		}
	case ev.Has(fsnotify.Create):
		// Usually the parent was read before this event, and the directory is known.
		if e, err := t.stat(d); err != nil || e.ID != d.info.ID || !d.watched || d.readErr != nil {
			t.visit(d, deep)
		}
	default:
		// The mode of the directory has changed or, with kqueue, its contents.
		t.visit(d, shallow)
	}
	t.sortScan(start)
}

// split returns the known directory that contains path, or nil, and the last element of path.
func (t *tree) split(path string) (*dir, string) {
	i := strings.LastIndexByte(path, filepath.Separator)
	if i < 0 {
		return nil, ""
	}
	if d := t.dirs[path[:i]]; d != nil {
		return d, path[i+1:]
	}
	return t.dirs[path[:i+1]], path[i+1:] // path is in "/"
}
