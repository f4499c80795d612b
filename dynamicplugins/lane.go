package dynamicplugins

import "sync"

// A lane is where the changes of one plugin follow each other. It exists while the plugin has instances or a change is under way,
// so that a plugin that is gone leaves nothing behind.
type lane struct {
	key    key
	saving sync.Mutex // held by a change from its beginning until it has taken effect

	// The rest is guarded by the registry's mutex; slots are added and removed by the holder of saving only.
	users int     // changes under way
	slots []*slot // newest first
	view  *view   // the one that readers see
}

// A slot is the place of one instance in the order of its plugin. At least one of shown and staged is set, staged may be the next
// version of shown.
type slot struct {
	shown  *instance
	staged *stage
}

// saved is what the storage holds of the instance.
func (s *slot) saved() *PluginInfo {
	if s.staged != nil {
		return s.staged.info
	}
	return s.shown.info
}

func (s *slot) allocID() string { return s.saved().AllocID }

// find returns the slot of an instance and its index, or nil.
func (l *lane) find(allocID string) (*slot, int) {
	for i, s := range l.slots {
		if s.allocID() == allocID {
			return s, i
		}
	}
	return nil, -1
}

// enter begins a change of k: it waits for the changes of k before it and returns with lane.saving and registry.mu held.
func (r *registry) enter(k key) (*lane, error) {
	r.mu.Lock()
	if err := r.usable(); err != nil {
		r.mu.Unlock()
		return nil, err
	}
	r.changes.Add(1)
	names := r.lanes[k.ptype]
	if names == nil {
		names = make(map[string]*lane)
		r.lanes[k.ptype] = names
	}
	l := names[k.name]
	if l == nil {
		l = &lane{key: k}
		names[k.name] = l
	}
	l.users++
	if !l.saving.TryLock() {
		r.mu.Unlock()
		l.saving.Lock()
		r.mu.Lock()
	}
	return l, nil
}

// leave ends a change that enter began. Both locks are held, and released.
func (r *registry) leave(l *lane) {
	l.users--
	if l.users == 0 && len(l.slots) == 0 {
		names := r.lanes[l.key.ptype]
		delete(names, l.key.name)
		if len(names) == 0 {
			delete(r.lanes, l.key.ptype)
		}
	}
	r.mu.Unlock()
	l.saving.Unlock()
	r.changes.Done()
}

// lane returns the lane of k if it has visible instances. The caller holds r.mu.
func (r *registry) lane(k key) *lane {
	if l := r.lanes[k.ptype][k.name]; l != nil && l.view != nil {
		return l
	}
	return nil
}

// put saves plugins as the new state of l. The caller holds both locks; r.mu is released meanwhile.
func (r *registry) put(l *lane, plugins []*PluginInfo) error {
	r.mu.Unlock()
	err := r.save(l.key, plugins)
	r.mu.Lock()
	if err != nil {
		return notSaved(l.key, err)
	}
	return nil
}

// savedForm returns what the storage is to hold of l, with info in the place of slot s, or without it if info is nil.
func (l *lane) savedForm(s *slot, info *PluginInfo) []*PluginInfo {
	plugins := make([]*PluginInfo, 0, len(l.slots))
	for _, other := range l.slots {
		switch {
		case other != s:
			plugins = append(plugins, other.saved())
		case info != nil:
			plugins = append(plugins, info)
		}
	}
	return plugins
}

// show makes what is in the slots of l visible, wakes those who wait for it and retires connections that are not used any more.
// The caller holds r.mu.
func (r *registry) show(l *lane) {
	var instances []*instance
	for _, s := range l.slots {
		if s.shown != nil {
			instances = append(instances, s.shown)
		}
	}
	var before, after *link
	if l.view != nil && l.view.shared != nil {
		before = l.view.shared.link
	}
	if len(instances) == 0 {
		l.view = nil
		r.views.Delete(l.key)
	} else {
		l.view = newView(instances)
		if l.view.shared != nil {
			after = l.view.shared.link
		}
		if after != before {
			after.revive()
		}
		r.views.Store(l.key, l.view)
	}
	if before != after {
		before.retire()
	}
	r.wake(l.key)
}
