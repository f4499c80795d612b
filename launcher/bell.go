package launcher

import (
	"errors"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// bell tells of changes in directories. The zero bell watches none; one watch of the system serves all.
type bell struct {
	mu      sync.Mutex // guards what follows
	watcher *fsnotify.Watcher
	ringing chan struct{} // closed when nothing is told any more
	waiting map[string]map[chan struct{}]bool
}

// watch has changes in a directory told until stop is called. The channel has room for one.
func (b *bell) watch(dir string) (news <-chan struct{}, stop func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watcher == nil {
		if b.watcher, err = fsnotify.NewWatcher(); err != nil {
			return nil, nil, err
		}
		b.ringing, b.waiting = make(chan struct{}), map[string]map[chan struct{}]bool{}
		go b.ring(b.watcher, b.ringing)
	}
	if err := b.watcher.Add(dir); err != nil { // again, if it was removed since
		return nil, nil, err
	}
	if b.waiting[dir] == nil {
		b.waiting[dir] = map[chan struct{}]bool{}
	}
	told := make(chan struct{}, 1)
	b.waiting[dir][told] = true
	return told, func() { b.leave(dir, told) }, nil
}

func (b *bell) leave(dir string, told chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.waiting[dir], told)
	if len(b.waiting[dir]) > 0 {
		return
	}
	delete(b.waiting, dir)
	if b.watcher != nil {
		_ = b.watcher.Remove(dir) // which may be gone
	}
}

// ring tells what the system tells. If that has lost something, everybody looks.
func (b *bell) ring(w *fsnotify.Watcher, ended chan struct{}) {
	defer close(ended)
	for {
		select {
		case e, open := <-w.Events:
			if !open {
				return
			}
			b.tell(filepath.Dir(e.Name))
		case err := <-w.Errors:
			if errors.Is(err, fsnotify.ErrEventOverflow) {
				b.tell("")
			}
		}
	}
}

// tell wakes those who wait for a directory; all if it is empty.
func (b *bell) tell(dir string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for of, waiting := range b.waiting {
		for told := range waiting {
			if dir == "" || dir == of {
				select {
				case told <- struct{}{}:
				default:
				}
			}
		}
	}
}

// close ends it. It is not used afterwards.
func (b *bell) close() {
	b.mu.Lock()
	w := b.watcher
	b.watcher = nil
	b.mu.Unlock()
	if w != nil {
		_ = w.Close() // what it watched is not needed
		<-b.ringing
	}
}
