package verify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// errEnded is returned by next if the process that was to make a socket has ended.
var errEnded = errors.New("the command ended")

// socketWatch tells of the sockets that appear in a plugin directory, as a host sees them: subdirectories included, hidden names not.
type socketWatch struct {
	fsnotify *fsnotify.Watcher
	dir      string
	seen     map[string]sock.ID
	waiting  []string
}

func watchSockets(dir string) (*socketWatch, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("cannot watch plugin directory %s: %w", dir, err)
	}
	w := &socketWatch{fsnotify: watcher, dir: dir, seen: map[string]sock.ID{}}
	if err := watcher.Add(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot watch plugin directory %s: %w", dir, err), watcher.Close())
	}
	w.search(dir)
	w.waiting = nil // those were there before
	return w, nil
}

func (w *socketWatch) close() { _ = w.fsnotify.Close() }

// next returns the path of the next socket that has appeared. It blocks until there is one, ctx ends or ended is closed.
func (w *socketWatch) next(ctx context.Context, ended <-chan struct{}) (string, error) {
	for len(w.waiting) == 0 {
		select {
		case event, ok := <-w.fsnotify.Events:
			if !ok {
				return "", fs.ErrClosed
			}
			if event.Has(fsnotify.Create) {
				w.look(event.Name)
			}
		case err, ok := <-w.fsnotify.Errors:
			if !ok {
				return "", fs.ErrClosed
			}
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return "", fmt.Errorf("cannot watch plugin directory %s: %w", w.dir, err)
			}
			w.search(w.dir)
		case <-ended:
			return "", errEnded
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	path := w.waiting[0]
	w.waiting = w.waiting[1:]
	return path, nil
}

// look looks at what is at a path now. A directory that appeared is searched after it is watched, so nothing is missed.
func (w *socketWatch) look(path string) {
	if strings.HasPrefix(filepath.Base(path), ".") {
		return
	}
	info, err := sock.Stat(path)
	switch {
	case err != nil: // gone already
	case info.Mode.IsDir():
		if err := w.fsnotify.Add(path); err == nil {
			w.search(path)
		}
	case info.IsSocket() && w.seen[path] != info.ID:
		w.seen[path] = info.ID
		w.waiting = append(w.waiting, path)
	}
}

// search looks at everything below a directory, which may be much: a plugin directory is small, so what is beyond a bound is not looked at.
func (w *socketWatch) search(dir string) {
	looked := 0
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, _ error) error { // what cannot be read has no socket for us
		if looked++; looked > maxListed {
			return fs.SkipAll
		}
		if entry == nil || path == dir {
			return nil
		}
		if strings.HasPrefix(entry.Name(), ".") {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if entry.IsDir() {
			_ = w.fsnotify.Add(path) // a limit is reached; what appears there is not seen, and the start times out
			return nil
		}
		w.look(path)
		return nil
	})
}
