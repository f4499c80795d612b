package dirwatch

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
)

// drainLimit is how many events are handled before what they led to is told.
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
	// t.doubt()
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
		t.look(parent, name, created)
	case known && ev.Has(fsnotify.Remove):
		t.look(parent, name, removed)
	case known && ev.Has(fsnotify.Rename):
		t.look(parent, name, renamed)
	case ev.Has(fsnotify.Chmod): // also of one that is refused and was too much to be remembered
		t.look(parent, name, scanned)
	}
	t.sortScan(start)
}

func (t *tree) handleDir(d *dir, ev event) {
	start := len(t.facts)
	switch {
	case ev.Has(fsnotify.Remove), ev.Has(fsnotify.Rename):
		// The watch has ended, or it follows the directory to where it went. What is at the path is something else.
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
		// Usually its parent was read before this event came.
		if e, err := t.stat(d); err != nil || e.ID != d.info.ID || !d.watched || d.readErr != nil {
			t.visit(d, deep)
		}
	default:
		// Its mode changed, or (kqueue) its contents.
		t.visit(d, shallow)
	}
	t.sortScan(start)
}

// split returns the known directory of a path, or nil, and its last element.
func (t *tree) split(path string) (*dir, string) {
	i := strings.LastIndexByte(path, filepath.Separator)
	if i < 0 {
		return nil, ""
	}
	if d := t.dirs[path[:i]]; d != nil {
		return d, path[i+1:]
	}
	return t.dirs[path[:i+1]], path[i+1:] // a root that is the file system's
}
