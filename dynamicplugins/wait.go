package dynamicplugins

import (
	"context"
	"maps"

	"github.com/patchbay-dev/patchbay/plugin"
)

// wait counts the callers that wait for a change of one plugin. It is removed with the last one.
type wait struct {
	changed chan struct{} // closed at the change
	waiters int
}

// await blocks until ready returns true for the view of k, nil if there is none, which it checks after each change of k. It returns an
// error when ctx ends or the registry is shut down.
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

// wake wakes the callers that wait for a change of k. The caller holds r.mu.
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

// replacement makes callers of a plugin wait for another instance than the one that is being stopped.
type replacement struct{ allocID string }

// Replacing implements [keeper.Keeper].
func (r storeKeeper) Replacing(ctx context.Context, ptype, name, allocID string) {
	k := plugin.Name{Type: ptype, Name: name}
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.view(k); v == nil || v.shared == nil || v.shared.info.AllocID != allocID {
		return
	}
	own := &replacement{allocID}
	r.setReplacement(k, own)
	context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.replacement(k) == own { // and not a later one
			r.setReplacement(k, nil)
			r.wake(k)
		}
	})
}

// setReplacement sets the replacement of a plugin; nil for none. The caller holds r.mu.
func (r *Store) setReplacement(k plugin.Name, to *replacement) {
	all := map[plugin.Name]*replacement{}
	if before := r.replacing.Load(); before != nil {
		all = maps.Clone(*before)
	}
	if all[k] = to; to == nil {
		delete(all, k)
	}
	r.replacing.Store(&all)
}

func (r *Store) replacement(k plugin.Name) *replacement {
	if all := r.replacing.Load(); all != nil {
		return (*all)[k]
	}
	return nil
}

// AwaitReplaced implements [keeper.Keeper].
func (r storeKeeper) AwaitReplaced(ctx context.Context, ptype, name string) error {
	k := plugin.Name{Type: ptype, Name: name}
	err := r.await(ctx, k, func(v *view) bool { return !r.replacement(k).isLeaving(v) })
	if err != nil && ctx.Err() != nil {
		return replacementMissing(k, ctx.Err())
	}
	return err
}

// isLeaving reports whether callers have no instance to use except the one that is being stopped.
func (p *replacement) isLeaving(v *view) bool {
	return p != nil && (v == nil || v.shared == nil || v.shared.info.AllocID == p.allocID)
}
