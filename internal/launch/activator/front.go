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
	// Demand requests a process. It calls done once, with nil when a process runs, or with the reason why none does. A caller that stops
	// waiting calls withdraw with the reason.
	Demand(done func(error)) (withdraw func(error))
	// Unneeded reports that a process is idle.
	Unneeded(t *Target)
}

// Settings of a [Front] may be changed with Set.
type Settings struct {
	// OnDemand requests a process for a call if none serves. A process is reported as Unneeded after Idle without calls.
	OnDemand bool
	Idle     time.Duration
	// Patience is the maximum time for which a call waits for a process.
	Patience time.Duration
}

// Target is a process that serves.
type Target struct {
	// Services is the connection to its services, whose streams take fragments.
	Services grpc.ClientConnInterface
	// Notify notifies the process whether it is registered and, if not, of the reason.
	Notify func(ctx context.Context, registered bool, reason string) error
	// Close releases the target. It is called once, when no call is in progress.
	Close func()
	// Generation grows with each replacement of the plugin. A process of an older generation may be passed to Serve late.
	Generation uint64

	// Guarded by Front.mu.
	calls   int           // calls in progress
	retired bool          // gets no further calls
	unused  chan struct{} // closed when the target is retired and has no calls; nil before it is retired
}

// Front is a listener that forwards calls to the processes of a plugin. Its methods are safe for concurrent use.
type Front struct {
	name, path string
	budget     *h2proxy.Budget
	owner      Owner
	serving    sync.WaitGroup

	placing sync.Mutex // held while the socket is created, replaced or removed; acquired before mu

	mu       sync.Mutex // guards the fields below; no foreign function is called with it
	settings Settings
	info     plugin.Info // empty before the first Open
	decision decision
	at       *listening // nil while the front does not listen
	target   *Target    // nil while no process serves
	idle     *time.Timer
	// changed is closed when a waiting call must look again. failures counts failed starts, failed is the last error.
	changed  chan struct{}
	failures int
	failed   error
	waiting  int // the number of waiting calls
}

// decision is the host's decision about the registration.
type decision struct {
	known, registered bool
	reason            string
}

// New returns a Front for the plugin name that does not listen yet. The directory of path must exist when Open is called. The budget bounds
// the calls and their data in memory.
func New(name, path string, budget *h2proxy.Budget, owner Owner, settings Settings) *Front {
	return &Front{name: name, path: path, budget: budget, owner: owner, settings: settings, changed: make(chan struct{})}
}

// Set changes the settings.
func (f *Front) Set(s Settings) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.settings != s {
		f.settings = s
		f.armIdleTimer()
	}
}

// Path returns the path of the socket.
func (f *Front) Path() string { return f.path }

// Needed reports whether a process is needed: because a call waits for it, or because the front cannot be opened before a process has
// announced the type and name of the plugin.
func (f *Front) Needed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waiting > 0 || f.info.Type == ""
}

// Status returns the host's decision about the registration; known is false if there is none yet.
func (f *Front) Status() (registered bool, reason string, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.decision.registered, f.decision.reason, f.decision.known
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

// Serve forwards new calls to t and retires the process before it. It has no effect if t is retired, or if a newer generation serves.
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

// Retire forwards no further calls to a process, and returns when no call to it is in progress or ctx is done. If no other process serves,
// and none is started on demand, the front stops listening first, so that callers receive GOAWAY and make their calls elsewhere.
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

// Fail ends all calls that wait for a process with an error.
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

// retire retires t, which may be nil. mu is held; the caller calls end after releasing it.
func (f *Front) retire(t *Target) (end func()) {
	if t == nil || t.retired {
		return func() {}
	}
	t.retired, t.unused = true, make(chan struct{})
	return f.unused(t)
}

// unused returns t.Close if t is retired and has no calls, and otherwise a function without effect. mu is held.
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
	if t == nil || t.calls > 0 || !f.settings.OnDemand {
		return
	}
	f.idle = time.AfterFunc(f.settings.Idle, func() {
		f.mu.Lock()
		unneeded := f.target == t && t.calls == 0
		if unneeded {
			f.armIdleTimer() // The owner may keep the process: it is not registered yet, or is about to be replaced.
		}
		f.mu.Unlock()
		if unneeded {
			f.owner.Unneeded(t)
		}
	})
}

// use returns the process for a call, and a function to call at the end of the call. It waits for a process if none serves.
func (f *Front) use(ctx context.Context) (t *Target, end func(), err error) {
	t, seen := f.take()
	if t == nil {
		if t, err = f.await(ctx, seen); err != nil {
			return nil, nil, err
		}
	}
	return t, sync.OnceFunc(func() { f.give(t) }), nil
}

// view is a copy of the state for a call that waits.
type view struct {
	settings Settings
	decision decision
	changed  <-chan struct{}
	failures int
	failed   error
}

// take counts a call to the process that serves. If none serves, it returns the state, so that the caller can wait for a change.
func (f *Front) take() (*Target, view) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.target
	if t == nil {
		return nil, view{f.settings, f.decision, f.changed, f.failures, f.failed}
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

// present returns the process that serves, without counting a call; nil if none serves.
func (f *Front) present() *Target {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.target
}

var errNone = errors.New("no process of it serves at present")

// await waits until a process serves, and counts a call to it. In the state seen, none did.
func (f *Front) await(ctx context.Context, seen view) (*Target, error) {
	if !seen.settings.OnDemand {
		return nil, errNone
	}
	if seen.decision.known && !seen.decision.registered {
		return nil, fmt.Errorf("it is not started for a call, because its host refused it: %s", seen.decision.reason)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, seen.settings.Patience, fmt.Errorf("it was not ready within %v", seen.settings.Patience))
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
