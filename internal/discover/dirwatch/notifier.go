package dirwatch

import (
	"github.com/fsnotify/fsnotify"
)

type event = fsnotify.Event

// notifier is a source of file events: fsnotify, or a fake in tests.
type notifier struct {
	events <-chan event
	// lost receives a value if events may have been lost.
	lost   <-chan struct{}
	add    func(path string) error
	remove func(path string) error
	close  func() error
}

// eventBuffer is how many events fsnotify reads ahead, so that the watcher handles a burst in groups.
const eventBuffer = 1024

// openNotifier starts fsnotify. The watcher must close it.
func openNotifier() (*notifier, error) {
	w, err := fsnotify.NewBufferedWatcher(eventBuffer)
	if err != nil {
		return nil, err
	}
	lost := make(chan struct{}, 1)
	ended := make(chan struct{})
	// fsnotify sends errors to an unbuffered channel, in part while it holds the lock that Add and Remove need. So this goroutine, which
	// calls neither, receives them.
	go func() {
		defer close(ended)
		for range w.Errors {
			select {
			case lost <- struct{}{}:
			default:
			}
		}
	}()
	return &notifier{
		events: w.Events,
		lost:   lost,
		add:    w.Add,
		remove: w.Remove,
		close: func() error {
			err := w.Close()
			<-ended
			return err
		},
	}, nil
}
