package verify

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/patchbay-dev/patchbay/internal/discover/dirwatch"
)

// errEnded says that the process that was to make a socket has ended.
var errEnded = errors.New("the command ended")

// socketWatch tells of the sockets that appear in a plugin directory, as a host sees them: subdirectories included, hidden names not.
type socketWatch struct {
	appeared chan string // their paths; one whose mode changes comes again
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

// watchSockets watches until close or the end of ctx.
func watchSockets(ctx context.Context, dir string) (*socketWatch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &socketWatch{appeared: make(chan string), cancel: cancel}
	scanned := make(chan struct{})
	watcher, err := dirwatch.New(dirwatch.Config{Roots: []dirwatch.Root{{Path: dir}}, Notify: func(u dirwatch.Update) {
		select {
		case <-scanned:
		default:
			close(scanned)
			return // those were there before
		}
		for _, fact := range u.Facts {
			if !fact.Present {
				continue
			}
			select {
			case w.appeared <- fact.Path:
			case <-ctx.Done():
			}
		}
	}})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("cannot watch plugin directory %s: %w", dir, err)
	}
	w.running.Go(func() { _ = watcher.Run(ctx) }) // it ends with ctx, and nothing else
	select {
	case <-scanned:
	case <-ctx.Done():
	}
	return w, nil
}

func (w *socketWatch) close() {
	w.cancel()
	w.running.Wait()
}
