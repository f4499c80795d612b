package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/reconciler"
)

const (
	// stateCondition is the name of the condition of the state file.
	stateCondition = "state"
	// stateCheckInterval is how often a state file that could not be written is tried.
	stateCheckInterval = 2 * time.Second
)

// stateWatch says when the state file cannot be written, and finds out when it can be again. Plugins that could not be saved come back by
// themselves, but there may be none.
type stateWatch struct {
	path  string
	check func() error // of the store
	// publish is set by start.
	publish func(reconciler.Event)
	log     *slog.Logger
	// woken has room for one: it has something while run is to look at a failure.
	woken chan struct{}

	mu        sync.Mutex
	condition patchbay.Condition
	again     bool // it failed since the check began
}

func newStateWatch(path string, check func() error, log *slog.Logger) *stateWatch {
	return &stateWatch{
		path: path, check: check, log: log, woken: make(chan struct{}, 1),
		condition: patchbay.Condition{Name: stateCondition, OK: true},
	}
}

// failed takes over that a change could not be written. It does not block.
func (w *stateWatch) failed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.again = true
	if w.condition.OK {
		w.condition.Since = time.Now()
	}
	w.condition.OK = false
	w.condition.Message = fmt.Sprintf("cannot write state file %s: %v; registered plugins stay so and new ones wait; "+
		"see whether its device is full, read-only or broken: it is tried again every %v", w.path, err, stateCheckInterval)
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// get returns the condition.
func (w *stateWatch) get() patchbay.Condition {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.condition
}

// start runs w. What it returns ends w and returns when nothing is left of it.
// What changes is told to publish.
func (w *stateWatch) start(ctx context.Context, publish func(reconciler.Event)) (stop func()) {
	w.publish = publish
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { w.run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

func (w *stateWatch) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.woken:
		}
		// The check that found the file in order may have left a wake-up.
		if c := w.get(); !c.OK {
			w.log.Error(c.Message)
			w.tell(pipeline.EventDegraded, c.Message)
			w.untilWritten(ctx)
		}
	}
}

// untilWritten returns when the file can be written, or when ctx ends.
func (w *stateWatch) untilWritten(ctx context.Context) {
	for {
		next := time.NewTimer(stateCheckInterval) // a device does not say when it works again
		select {
		case <-ctx.Done():
			next.Stop()
			return
		case <-next.C:
		}
		if w.recovered() {
			w.log.Info("the state file can be written again", "path", w.path)
			w.tell(pipeline.EventRecovered, "the state file can be written again")
			return
		}
	}
}

// recovered checks the file and reports whether nothing fails any more.
func (w *stateWatch) recovered() bool {
	w.mu.Lock()
	w.again = false
	w.mu.Unlock()
	err := w.check()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil || w.again {
		return false
	}
	w.condition = patchbay.Condition{Name: stateCondition, OK: true}
	return true
}

func (w *stateWatch) tell(kind reconciler.EventKind, message string) {
	w.publish(reconciler.Event{Time: time.Now(), Kind: kind, SocketPath: w.path, Message: message})
}
