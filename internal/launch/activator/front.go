// Package activator answers at the socket of a launched plugin in the plugin's place: callers stay connected to the host while processes
// come and go behind it. A [Front] announces the plugin, forwards calls to the process that serves, and requests a process for a call if
// none serves. It does not start or stop processes itself.
//
// Probes do not start the plugin: the front answers the registration, grpc.health.v1 and the reflection of an idle plugin, and connections
// without calls do not count.
package activator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Owner starts and stops the processes behind a [Front]. Its methods may not call the Front.
type Owner interface {
	// Demand requests a process. It calls done once, with nil when a process runs or with the reason why none does. The caller that does not
	// wait any more calls withdraw.
	Demand(done func(error)) (withdraw func(error))
	// Unneeded reports that a process is idle.
	Unneeded(t *Target)
}

// Settings may change while a front is used.
type Settings struct {
	// OnDemand starts a process for a call if none serves. A process without calls for Idle is reported as idle.
	OnDemand bool
	Idle     time.Duration
	// Patience is how long a call waits for a process at most.
	Patience time.Duration
}

// Target is a process that serves.
type Target struct {
	// Services is the connection to its services. It takes calls of fragments.
	Services grpc.ClientConnInterface
	// Notify tells it whether it is registered and, if not, why.
	Notify func(ctx context.Context, registered bool, reason string) error
	// Close closes what it has. It is called once, when no call is under way.
	Close func()
	// Generation grows with each replacement of the plugin. The processes of a replaced one may be met late.
	Generation uint64

	// Guarded by Front.mu: calls under way; whether it gets no more; what is closed when it does not and none is, nil before it is retired.
	calls   int
	retired bool
	unused  chan struct{}
}

// Front is a listener that forwards calls to the processes of a plugin. Its methods are safe for concurrent use.
type Front struct {
	name, path string
	budget     *h2proxy.Budget
	owner      Owner
	serving    sync.WaitGroup

	placing sync.Mutex // one change of where it answers at a time; taken before mu

	mu     sync.Mutex // guards what follows; held for short steps, and nothing is called with it
	set    Settings
	info   plugin.Info
	told   told
	at     *listening // nil while it does not answer
	target *Target    // nil while none serves
	idle   *time.Timer
	// changed is closed when there is news for those who wait; failures counts those of starts, of which failed is the last.
	changed  chan struct{}
	failures int
	failed   error
	waiting  int
}

// told is what the host has said of the registration, if it has.
type told struct {
	said, registered bool
	reason           string
}

// New returns a Front for a plugin that does not listen yet. The directory of the path must exist when it opens. The budget bounds what
// waits in memory for callers, and their calls.
func New(name, path string, budget *h2proxy.Budget, owner Owner, settings Settings) *Front {
	return &Front{name: name, path: path, budget: budget, owner: owner, set: settings, changed: make(chan struct{})}
}

// Set gives it other settings.
func (f *Front) Set(s Settings) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.set != s {
		f.set = s
		f.armIdleTimer()
	}
}

// Path is where it answers.
func (f *Front) Path() string { return f.path }

// Needed reports whether a call waits for a process, or one is needed to say what the plugin is: until then nobody can call it.
func (f *Front) Needed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waiting > 0 || f.info.Type == ""
}

// Status returns what the host has said of the registration; said is false if it has not.
func (f *Front) Status() (registered bool, reason string, said bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.told.registered, f.told.reason, f.told.said
}

// Check returns an error if the plugin is registered with another announcement.
func (f *Front) Check(info plugin.Info) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.info.Type != "" && info.PluginName() != f.info.PluginName() {
		return fmt.Errorf("it says that it is %s/%s, and it is announced as %s/%s: correct what announces it, or remove the plugin from the "+
			"catalogue and add it again", info.Type, info.Name, f.info.Type, f.info.Name)
	}
	return nil
}

// Serve has calls go to a process from now on, and not to the one before any more; unless the process was retired already, or its successor
// serves.
func (f *Front) Serve(t *Target) {
	f.mu.Lock()
	if t.retired || f.target != nil && f.target.Generation > t.Generation {
		f.mu.Unlock()
		return
	}
	before := f.target
	f.target = t
	f.armIdleTimer()
	f.wakeWaiters()
	end := f.retire(before)
	f.mu.Unlock()
	end()
}

// Retire has no further call go to a process, and returns when none is under way or ctx ends. If no other serves, nor is started on demand,
// it answers no more: callers are told to make their calls elsewhere before the process is taken from them.
func (f *Front) Retire(ctx context.Context, t *Target) {
	f.drain(ctx, t)
	f.mu.Lock()
	if f.target == t {
		f.target = nil
		f.armIdleTimer()
	}
	end := f.retire(t)
	unused := t.unused
	f.mu.Unlock()
	end()
	select {
	case <-unused:
	case <-ctx.Done():
	}
}

// Fail tells those who wait for a process why there is none.
func (f *Front) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures++
	f.failed = err
	f.wakeWaiters()
}

// wakeWaiters wakes the calls that wait for a process. mu is held.
func (f *Front) wakeWaiters() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// retire takes a target out of use, and returns what to call without mu, which is held.
func (f *Front) retire(t *Target) (end func()) {
	if t == nil || t.retired {
		return func() {}
	}
	t.retired, t.unused = true, make(chan struct{})
	return f.unused(t)
}

// unused returns what ends a target that is not used any more. mu is held.
func (f *Front) unused(t *Target) (end func()) {
	if !t.retired || t.calls > 0 {
		return func() {}
	}
	close(t.unused)
	return t.Close
}

// armIdleTimer restarts the idle timer if a process serves and no call is in progress. mu is held.
func (f *Front) armIdleTimer() {
	if f.idle != nil {
		f.idle.Stop()
		f.idle = nil
	}
	t := f.target
	if t == nil || t.calls > 0 || !f.set.OnDemand {
		return
	}
	f.idle = time.AfterFunc(f.set.Idle, func() {
		f.mu.Lock()
		unneeded := f.target == t && t.calls == 0
		if unneeded {
			f.armIdleTimer() // The process may be kept: it is not registered yet, or another one is about to replace it.
		}
		f.mu.Unlock()
		if unneeded {
			f.owner.Unneeded(t)
		}
	})
}

// use returns the process for a call, and the function to call at the call's end. It waits for a process that is being started.
func (f *Front) use(ctx context.Context) (t *Target, end func(), err error) {
	t, seen := f.take()
	if t == nil {
		if t, err = f.await(ctx, seen); err != nil {
			return nil, nil, err
		}
	}
	return t, sync.OnceFunc(func() { f.give(t) }), nil
}

// view is what one who waits for a process has seen.
type view struct {
	set      Settings
	told     told
	changed  <-chan struct{}
	failures int
	failed   error
}

// take counts a call to the process that serves. If none does, it returns the state to wait for a change of.
func (f *Front) take() (*Target, view) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.target
	if t == nil {
		return nil, view{f.set, f.told, f.changed, f.failures, f.failed}
	}
	if t.calls++; t.calls == 1 {
		f.armIdleTimer()
	}
	return t, view{}
}

// give ends a call.
func (f *Front) give(t *Target) {
	f.mu.Lock()
	t.calls--
	if t.calls == 0 && f.target == t {
		f.armIdleTimer()
	}
	end := f.unused(t)
	f.mu.Unlock()
	end()
}

// present returns the process that serves, for a call that is no need of it and does not count; nil if none serves.
func (f *Front) present() *Target {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.target
}

var errNone = errors.New("no process of it serves at present")

// await waits until a process serves, and counts a call to it. At seen, none did.
func (f *Front) await(ctx context.Context, seen view) (*Target, error) {
	if !seen.set.OnDemand {
		return nil, errNone
	}
	if seen.told.said && !seen.told.registered {
		return nil, fmt.Errorf("it is not started for a call, because its host refused it: %s", seen.told.reason)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, seen.set.Patience, fmt.Errorf("it was not ready within %v", seen.set.Patience))
	defer cancel()
	f.wait(1)
	defer f.wait(-1)
	started := make(chan error, 1)
	withdraw := f.owner.Demand(func(err error) { started <- err })
	for changed := seen.changed; ; {
		var err error
		select {
		case err = <-started:
		case <-changed:
		case <-ctx.Done():
			err = context.Cause(ctx)
			withdraw(err)
		}
		if err != nil {
			return nil, err
		}
		t, now := f.take()
		switch {
		case t != nil:
			return t, nil
		case now.failures != seen.failures:
			return nil, now.failed
		}
		changed = now.changed
	}
}

func (f *Front) wait(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting += n
}
