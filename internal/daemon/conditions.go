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
	// stateCheckInterval is how often a state file that could not be written is tried.
	stateCheckInterval = 2 * time.Second
)

// stateWatch knows whether the state file can be written. After a failure it checks the file until it can be written again.
type stateWatch struct {
	path  string
	check func() error // of the store
	log   *slog.Logger
	// woken has room for one value, which tells start about a failure.
	woken chan struct{}

	mu        sync.Mutex
	condition plugin.Condition
	again     bool // it failed since the check began
}

func newStateWatch(path string, check func() error, log *slog.Logger) *stateWatch {
	return &stateWatch{
		path: path, check: check, log: log, woken: make(chan struct{}, 1),
		condition: plugin.Condition{Name: stateCondition, OK: true},
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
	wake(w.woken)
}

// wake sends a value to a channel that has room for one, unless there is one already.
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

// start runs w, which tells publish of what changes. What it returns ends w and returns when nothing is left of it.
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
				continue // the check that found the file in order has left a wake-up
			}
			w.log.Error(c.Message)
			tell(plugin.EventDegraded, c.Message)
			for recovered := false; !recovered; recovered = w.recovered() {
				if !backoff.Pause(ctx, stateCheckInterval) { // a device does not say when it works again
					return
				}
			}
			w.log.Info("the state file can be written again", "path", w.path)
			tell(plugin.EventRecovered, "the state file can be written again")
		}
	})
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
	w.condition = plugin.Condition{Name: stateCondition, OK: true}
	return true
}

// fileLimit knows whether this process can open another file. The system does not report when it can again, so each call tries it.
type fileLimit struct {
	mu    sync.Mutex
	since time.Time // zero while it can
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

// openAnother opens another descriptor of standard input and closes it. The error is that there is none left.
func openAnother() error {
	fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
	switch {
	case err == nil:
		return unix.Close(fd)
	case errors.Is(err, unix.EMFILE):
		return err
	default: // standard input is closed, so the result is not known
		return nil
	}
}

// observed is the runtime as the daemon shows it: with conditions of the daemon's own.
type observed struct {
	*pluginruntime.Runtime
	reloads  *reloads
	dispense *stablesocket.Sockets // nil if there are no stable sockets
	state    *stateWatch
	files    *fileLimit
	node     *node.Node
}

// readiness has the conditions without which no plugin can be registered. Others do not make a node unready: those about events, and those
// about what users other than root and the daemon's do.
type readiness struct{ observed }

func (r readiness) Conditions() []plugin.Condition {
	return append(slices.DeleteFunc(r.Runtime.Conditions(), func(c plugin.Condition) bool {
		return c.Name == pluginruntime.ConditionDirectories || c.Name == pluginruntime.ConditionEvents
	}), r.state.get())
}

// Conditions are ordered by name.
func (o observed) Conditions() []plugin.Condition {
	all := append(o.Runtime.Conditions(), o.state.get(), o.reloads.condition(), o.files.condition())
	if o.dispense != nil {
		all = append(all, o.dispense.Condition())
	}
	all = append(all, o.node.Conditions()...)
	slices.SortFunc(all, func(a, b plugin.Condition) int { return strings.Compare(a.Name, b.Name) })
	return all
}
