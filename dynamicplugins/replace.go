package dynamicplugins

import (
	"context"
	"maps"

	"github.com/patchbay-dev/patchbay/plugin"
)

// replacement makes callers of a plugin wait until another instance has taken the place of the one that is stopped.
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
		if r.replacement(k) == own { // else there is a later one
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

// isLeaving reports whether the instance that callers of the view use is the one that is stopped.
func (p *replacement) isLeaving(v *view) bool {
	return p != nil && (v == nil || v.shared == nil || v.shared.info.AllocID == p.allocID)
}
