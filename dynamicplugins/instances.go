package dynamicplugins

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/patchbay-dev/patchbay/plugin"
)

// pluginInstances are the instances of one plugin, in order. They exist while the plugin has instances or a change is in progress.
type pluginInstances struct {
	key plugin.Name

	changing     sync.Mutex    // held by a change from its beginning until it has taken effect
	saved        []*PluginInfo // as stored, newest first; immutable, because the storage may keep it; guarded by changing
	orderUnsaved bool          // the stored order may differ; guarded by changing
	gone         bool          // the registry has removed this value; guarded by changing

	slots      []slot               // of the instances in saved, in the same order; guarded by Store.mu
	inlineSlot [1]slot              // the memory of slots, because nearly all plugins have one instance
	view       atomic.Pointer[view] // for readers, or nil; written with Store.mu held
}

// A slot is the position of one instance within its plugin. At least one of shown and staged is set; staged may be an update of shown.
type slot struct {
	shown  *instance
	staged *stage
	rank   uint64 // that of shown, or a higher one of staged
}

func (r *Store) pluginInstances(k plugin.Name) *pluginInstances {
	v, _ := r.perPlugin.Load(k)
	l, _ := v.(*pluginInstances)
	return l
}

// change calls do with the instances of k and their changing held, after the earlier changes of k.
func (r *Store) change(k plugin.Name, do func(*pluginInstances) error) (err error) {
	if down := r.changeAll([]plugin.Name{k}, func(l []*pluginInstances) { err = do(l[0]) }); down != nil {
		return down
	}
	return err
}

// changeAll is change for several plugins together. The keys must be different and sorted, so that two changes never wait for each other.
func (r *Store) changeAll(keys []plugin.Name, do func([]*pluginInstances)) error {
	if err := r.begin(); err != nil {
		return err
	}
	defer r.changes.Done()
	held := make([]*pluginInstances, 0, len(keys))
	defer func() {
		for _, l := range held {
			if l.gone = len(l.saved) == 0; l.gone {
				r.perPlugin.Delete(l.key)
			}
			l.changing.Unlock()
		}
	}()
	for len(held) < len(keys) {
		l := r.pluginInstancesOrNew(keys[len(held)])
		l.changing.Lock()
		if l.gone { // the registry removed it before Lock returned
			l.changing.Unlock()
			continue
		}
		held = append(held, l)
	}
	do(held)
	return nil
}

func (r *Store) pluginInstancesOrNew(k plugin.Name) *pluginInstances {
	if l := r.pluginInstances(k); l != nil {
		return l
	}
	l := &pluginInstances{key: k}
	l.slots = l.inlineSlot[:0]
	v, _ := r.perPlugin.LoadOrStore(k, l)
	l, _ = v.(*pluginInstances)
	return l
}

// begin makes Shutdown wait for a change, until the caller calls changes.Done.
func (r *Store) begin() error {
	r.entry.RLock()
	defer r.entry.RUnlock()
	if err := r.usable(); err != nil {
		return err
	}
	r.changes.Add(1)
	return nil
}

// find returns the index of an instance, or -1. The caller holds l.changing.
func (l *pluginInstances) find(allocID string) int {
	return slices.IndexFunc(l.saved, func(p *PluginInfo) bool { return p.AllocID == allocID })
}

// put saves plugins as the new state of l. The caller holds l.changing.
func (r *Store) put(l *pluginInstances, plugins []*PluginInfo) error {
	s := r.saving(l, plugins)
	return r.saved(l, s, r.save.one(s))
}

func (r *Store) saving(l *pluginInstances, plugins []*PluginInfo) saving {
	return saving{key: l.key, plugins: plugins, reservation: r.reserved.unsaved(l.key)}
}

// saved records in l that s was saved, if err is nil. The caller holds l.changing.
func (r *Store) saved(l *pluginInstances, s saving, err error) error {
	if err != nil {
		text := fmt.Sprintf("cannot save plugin %s for type %s", l.key.Name, l.key.Type)
		return &failure{text: text, sentinel: ErrNotSaved, cause: err}
	}
	r.reserved.saved(s.reservation)
	l.saved, l.orderUnsaved = s.plugins, false
	return nil
}

// remove saves the instances without that at i. The caller holds l.changing, and removes the slot.
func (r *Store) remove(l *pluginInstances, i int) error {
	return r.put(l, slices.Delete(slices.Clone(l.saved), i, i+1))
}

// moved returns the saved instances with info, which replaces the one at from, at to. The caller holds l.changing.
func (l *pluginInstances) moved(from, to int, info *PluginInfo) []*PluginInfo {
	return slices.Insert(slices.Delete(slices.Clone(l.saved), from, from+1), to, info)
}

// show makes the slots of l visible, wakes waiting callers and retires the connection of an instance that is not current any more. The
// caller holds r.mu.
func (r *Store) show(l *pluginInstances) {
	before, after := l.view.Load(), newView(l.slots)
	if after.link() != before.link() {
		after.link().revive()
	}
	l.view.Store(after)
	if after.link() != before.link() {
		before.link().retire()
	}
	if before.isDoubtful() && !after.isDoubtful() {
		r.confirmed.Add(1)
	}
	r.count(l.key.Type, before != nil, after != nil)
	r.wake(l.key)
}

// count updates r.names when a name gets or loses its view. The caller holds r.mu.
func (r *Store) count(ptype string, before, after bool) {
	switch {
	case after && !before:
		r.names[ptype]++
	case before && !after:
		r.names[ptype]--
		if r.names[ptype] == 0 {
			delete(r.names, ptype)
		}
	}
}
