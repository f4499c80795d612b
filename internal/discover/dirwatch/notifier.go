package dirwatch

import (
	"github.com/fsnotify/fsnotify"
)

type event = fsnotify.Event

// notifier is a source of file events: fsnotify, or what a test puts in its place.
type notifier struct {
	events <-chan event
	// doubt delivers when events were lost or may have been. It never blocks the source.
	doubt  <-chan struct{}
	add    func(path string) error
	remove func(path string) error
	close  func() error
}

// eventBuffer lets fsnotify read ahead of the watcher, so that a burst is handled in groups.
const eventBuffer = 1024

// openNotifier starts fsnotify. The watcher must close it.
func openNotifier() (*notifier, error) {
	w, err := fsnotify.NewBufferedWatcher(eventBuffer)
	if err != nil {
		return nil, err
	}
	doubt := make(chan struct{}, 1)
	ended := make(chan struct{})
	// fsnotify sends errors unbuffered, in part while it holds the lock that Add and Remove need. So they are always received, by a
	// goroutine that calls neither.
	go func() {
		defer close(ended)
		for range w.Errors {
			select {
			case doubt <- struct{}{}:
			default:
			}
		}
	}()
	return &notifier{
		events: w.Events,
		doubt:  doubt,
		add:    w.Add,
		remove: w.Remove,
		close: func() error {
			err := w.Close()
			<-ended
			return err
		},
	}, nil
}
