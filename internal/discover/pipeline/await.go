package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/patchbay-dev/patchbay/plugin"
)

// maxAwaited is how many events are buffered for a caller of AwaitRegistered. If there are more, the oldest are dropped, because only the
// newest state counts.
const maxAwaited = 8

// awaiting delivers events to the callers of AwaitRegistered, by socket. Its lock may be locked while the reconciler's is held, but not the
// other way around.
type awaiting struct {
	mu      sync.Mutex
	waiters map[string][]chan plugin.Event
}

func (a *awaiting) add(socket string) (events <-chan plugin.Event, remove func()) {
	waiter := make(chan plugin.Event, maxAwaited)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiters == nil {
		a.waiters = map[string][]chan plugin.Event{}
	}
	a.waiters[socket] = append(a.waiters[socket], waiter)
	return waiter, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		left := slices.DeleteFunc(a.waiters[socket], func(w chan plugin.Event) bool { return w == waiter })
		if a.waiters[socket] = left; len(left) == 0 {
			delete(a.waiters, socket)
		}
	}
}

// notify sends an event to the waiters for its socket. It does not block.
func (a *awaiting) notify(e plugin.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, waiter := range a.waiters[e.SocketPath] {
		if len(waiter) == cap(waiter) {
			select {
			case <-waiter:
			default: // the waiter has just received it
			}
		}
		waiter <- e // only notify sends
	}
}

// AwaitRegistered blocks until the plugin behind a socket is registered, or ctx ends, whose error it returns. It calls refused if the
// plugin is refused at the time of the call, and each time it is refused later. ptype is empty if the type is unknown.
func AwaitRegistered(ctx context.Context, w *Watcher, socket string, refused func(ptype string, why error)) error {
	events, remove := w.awaiting.add(socket)
	defer remove()
	refuse := func(ptype, name, how, why string) {
		if ptype != "" {
			how = fmt.Sprintf("its registration as %s/%s was %s", ptype, name, how)
		} else {
			how = "it was " + how
		}
		refused(ptype, fmt.Errorf("%s: %s", how, why))
	}
	plugins, _ := w.Plugins()
	for _, s := range plugins {
		switch {
		case s.SocketPath != socket:
		case s.State == plugin.StateRegistered || s.State == plugin.StateSuperseded:
			return nil
		case s.State == plugin.StateRefused || s.State == plugin.StateIgnored:
			refuse(s.Type, s.Name, string(s.State), cmp.Or(s.LastError, "no handler is registered for its type"))
		}
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-events:
			switch e.Kind {
			case plugin.EventRegistered, plugin.EventUpdated, plugin.EventSuperseded:
				return nil
			case plugin.EventRefused, plugin.EventIgnored:
				refuse(e.Type, e.Name, string(e.Kind), e.Message)
			default: // it is neither registered nor refused
			}
		}
	}
}
