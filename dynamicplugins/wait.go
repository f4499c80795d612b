package dynamicplugins

import (
	"context"

	"github.com/patchbay-dev/patchbay/plugin"
)

// wait counts the callers that wait for a change of one plugin. It is removed with the last one.
type wait struct {
	changed chan struct{} // closed at the change
	waiters int
}

// await calls ready with the present view of k, nil if there is none, until it says that the waiting is over, and again after
// each change of k. It fails when ctx ends and when the registry is shut down.
func (r *Store) await(ctx context.Context, k plugin.Name, ready func(*view) bool) error {
	for {
		r.mu.Lock()
		if err := r.usable(); err != nil {
			r.mu.Unlock()
			return err
		}
		if ready(r.view(k)) {
			r.mu.Unlock()
			return nil
		}
		w := r.waits[k]
		if w == nil {
			w = &wait{changed: make(chan struct{})}
			r.waits[k] = w
		}
		w.waiters++
		r.mu.Unlock()

		select {
		case <-w.changed:
		case <-r.stopping:
		case <-ctx.Done():
			r.mu.Lock()
			defer r.mu.Unlock()
			w.waiters--
			if w.waiters == 0 && r.waits[k] == w {
				delete(r.waits, k)
			}
			return ctx.Err()
		}
	}
}

// wake wakes those who wait for a change of k. The caller holds r.mu.
func (r *Store) wake(k plugin.Name) {
	if w := r.waits[k]; w != nil {
		delete(r.waits, k)
		close(w.changed)
	}
}

// WaitForPlugin implements [Registry].
func (r *Store) WaitForPlugin(ctx context.Context, ptype, name string) (*PluginInfo, error) {
	return r.waitFor(ctx, ptype, name, func(v *view) *instance { return v.current })
}

// WaitForConfirmedPlugin implements [keeper.Keeper].
func (r storeKeeper) WaitForConfirmedPlugin(ctx context.Context, ptype, name string) (*PluginInfo, error) {
	return r.waitFor(ctx, ptype, name, func(v *view) *instance { return v.shared })
}

func (r *Store) waitFor(ctx context.Context, ptype, name string, choose func(*view) *instance) (*PluginInfo, error) {
	k, err := named(ptype, name, "wait for")
	if err != nil {
		return nil, err
	}
	var info *PluginInfo
	err = r.await(ctx, k, func(v *view) bool {
		if v == nil {
			return false
		}
		in := choose(v)
		if in != nil {
			info = in.info
		}
		return in != nil
	})
	return info, err
}
