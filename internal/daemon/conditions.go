package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/daemon/node"
	"github.com/patchbay-dev/patchbay/internal/daemon/stablesocket"
	"github.com/patchbay-dev/patchbay/internal/pluginruntime"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// stateCondition and filesCondition are the names of the conditions of the state file and of the limit of open files.
	stateCondition, filesCondition = "state", "files"
	// stateCheckInterval is the time between checks of a state file that could not be written.
	stateCheckInterval = 2 * time.Second
)

// stateWatch has the condition of the state file. After a failed write it checks the file until it can be written again.
type stateWatch struct {
	path  string
	check func() error // of the store
	log   *slog.Logger
	// woken receives a value after a failure. It has room for one.
	woken chan struct{}

	mu        sync.Mutex
	condition plugin.Condition
	again     bool // a write failed after the current check began
}

func newStateWatch(path string, check func() error, log *slog.Logger) *stateWatch {
	return &stateWatch{
		path: path, check: check, log: log, woken: make(chan struct{}, 1),
		condition: plugin.Condition{Name: stateCondition, OK: true},
	}
}

// failed records that a change could not be written. It does not block.
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
	wake(w.woken)
}

// wake sends a value to a channel with room for one, unless it is full.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (w *stateWatch) get() plugin.Condition {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.condition
}

// start starts to check the file after failures, and publishes events when its condition changes. The caller must call stop, which waits
// until w has ended.
func (w *stateWatch) start(ctx context.Context, publish func(plugin.Event)) (stop func()) {
	return inBackground(ctx, func(ctx context.Context) {
		tell := func(kind plugin.EventKind, message string) {
			publish(plugin.Event{Time: time.Now(), Kind: kind, SocketPath: w.path, Message: message})
		}
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.woken:
			}
			c := w.get()
			if c.OK {
				continue // a value from a failure before the check that succeeded
			}
			w.log.Error(c.Message)
			tell(plugin.EventDegraded, c.Message)
			for recovered := false; !recovered; recovered = w.recovered() {
				if !backoff.Pause(ctx, stateCheckInterval) { // there is no notification when a device works again
					return
				}
			}
			w.log.Info("the state file can be written again", "path", w.path)
			tell(plugin.EventRecovered, "the state file can be written again")
		}
	})
}

// recovered checks the file, and reports whether it can be written and no write has failed since the check began.
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
	w.condition = plugin.Condition{Name: stateCondition, OK: true}
	return true
}

// fileLimit has the condition of the limit of open files. There is no notification when files can be opened again, so each call tries it.
type fileLimit struct {
	mu    sync.Mutex
	since time.Time // when opening a file failed first; zero if it works
}

func (f *fileLimit) condition() plugin.Condition {
	err := openAnother()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.since = time.Time{}
		return plugin.Condition{Name: filesCondition, OK: true}
	}
	if f.since.IsZero() {
		f.since = time.Now()
	}
	return plugin.Condition{Name: filesCondition, Since: f.since, Message: fmt.Sprintf("no other file can be opened: %v; registered "+
		"plugins stay so, other plugins and callers wait; raise the limit of open files (ulimit -n, or LimitNOFILE= of the service)", err)}
}

// openAnother duplicates standard input and closes the copy. It returns EMFILE if there are too many open files.
func openAnother() error {
	fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	switch {
	case err == nil:
		return unix.Close(fd)
	case errors.Is(err, unix.EMFILE):
		return err
	default: // standard input is closed: the limit cannot be checked
		return nil
	}
}

// observed is the runtime with additional conditions of the daemon.
type observed struct {
	*pluginruntime.Runtime
	reloads  *reloads
	dispense *stablesocket.Sockets // nil if there are no stable sockets
	state    *stateWatch
	files    *fileLimit
	node     *node.Node
}

// readiness has only the conditions that plugins need to be registered. It omits those about events, and those that users other than root
// and the daemon's user can cause.
type readiness struct{ observed }

func (r readiness) Conditions() []plugin.Condition {
	return append(slices.DeleteFunc(r.Runtime.Conditions(), func(c plugin.Condition) bool {
		return c.Name == pluginruntime.ConditionDirectories || c.Name == pluginruntime.ConditionEvents
	}), r.state.get())
}

// Conditions returns all conditions, ordered by name.
func (o observed) Conditions() []plugin.Condition {
	all := append(o.Runtime.Conditions(), o.state.get(), o.reloads.condition(), o.files.condition())
	if o.dispense != nil {
		all = append(all, o.dispense.Condition())
	}
	all = append(all, o.node.Conditions()...)
	slices.SortFunc(all, func(a, b plugin.Condition) int { return strings.Compare(a.Name, b.Name) })
	return all
}
