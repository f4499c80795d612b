package dynamicplugins

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/internal/keeper"
	"github.com/patchbay-dev/patchbay/plugin"
)

// stage implements [keeper.Staged]. It is guarded by the registry's mutex.
type stage struct {
	registry        *Store
	pluginInstances *pluginInstances
	info            *PluginInfo
	discarding      bool // Discard is saving
	// instance is what Publish makes visible if preconnect has made it; otherwise nil.
	instance *instance
}

// RegisterPlugin implements [Registry].
func (r *Store) RegisterPlugin(info *PluginInfo) error {
	if err := info.check(); err != nil {
		return err
	}
	info = r.intern(info)
	return r.register(info, func(l *pluginInstances, s *slot) { r.publish(l, s, info) })
}

// intern returns the registry's copy of info, which shares the options of the last registered plugin if they are equal: plugins of one type
// usually have the same options.
func (r *Store) intern(info *PluginInfo) *PluginInfo {
	last := r.options.Load()
	if last == nil || len(info.Options) == 0 || !maps.Equal(*last, info.Options) {
		c := info.clone()
		r.options.Store(&c.Options)
		return c
	}
	bare := *info
	bare.Options = nil
	c := bare.clone()
	c.Options = *last
	return c
}

// StagePlugins implements [keeper.Keeper].
func (r storeKeeper) StagePlugins(infos []*PluginInfo) (staged []keeper.Staged, errs []error) {
	staged, errs = make([]keeper.Staged, len(infos)), make([]error, len(infos))
	var rest []int // the indexes of valid infos that are not staged yet
	for i, info := range infos {
		if errs[i] = info.check(); errs[i] == nil {
			rest = append(rest, i)
		}
	}
	keyOf := func(i int) plugin.Name { return plugin.Name{Type: infos[i].Type, Name: infos[i].Name} }
	slices.SortStableFunc(rest, func(a, b int) int {
		return cmp.Or(cmp.Compare(infos[a].Type, infos[b].Type), cmp.Compare(infos[a].Name, infos[b].Name))
	})
	for len(rest) > 0 {
		var some, others []int // some has at most one instance of each plugin
		var keys []plugin.Name
		for _, i := range rest {
			if n := len(keys); n > 0 && keys[n-1] == keyOf(i) {
				others = append(others, i)
				continue
			}
			some, keys = append(some, i), append(keys, keyOf(i))
		}
		err := r.changeAll(keys, func(perPlugin []*pluginInstances) { r.stageIn(perPlugin, some, infos, staged, errs) })
		for _, i := range some {
			errs[i] = cmp.Or(errs[i], err)
		}
		rest = others
	}
	return staged, errs
}

// stageIn stages the infos with the indexes in some. The caller holds changing of their plugins.
func (r *Store) stageIn(perPlugin []*pluginInstances, some []int, infos []*PluginInfo, staged []keeper.Staged, errs []error) {
	positions, stages := make([]position, len(some)), make([]*stage, len(some))
	var all []saving
	for n, i := range some {
		stages[n] = &stage{registry: r, pluginInstances: perPlugin[n], info: infos[i]}
		stages[n].preconnect()
		if positions[n] = perPlugin[n].positionOf(infos[i], true); positions[n].plugins != nil {
			all = append(all, r.saving(perPlugin[n], positions[n].plugins))
		}
	}
	var unsaved []error
	if len(all) > 0 { // otherwise a storage of whole states would write one
		unsaved = r.save.all(all)
	}
	for n, i := range some {
		var err error
		if positions[n].plugins != nil {
			if len(unsaved) > 0 {
				err, unsaved = unsaved[0], unsaved[1:]
			}
			err = r.saved(perPlugin[n], all[0], err)
			all = all[1:]
		}
		if errs[i] = r.insertAt(perPlugin[n], positions[n], infos[i], err, stages[n].enter); errs[i] == nil {
			staged[i] = stages[n]
		} else {
			stages[n].dropPreconnected()
		}
	}
}

// register saves info and calls apply with its slot, with r.mu held.
func (r *Store) register(info *PluginInfo, apply func(*pluginInstances, *slot)) error {
	return r.change(plugin.Name{Type: info.Type, Name: info.Name}, func(l *pluginInstances) (err error) {
		p := l.positionOf(info, false)
		if p.plugins != nil {
			err = r.put(l, p.plugins)
		}
		return r.insertAt(l, p, info, err, apply)
	})
}

// position is a move of an instance within its plugin, from an index, -1 for a new instance, to another. plugins is the list to save; nil
// if nothing has to be saved.
type position struct {
	from, to int
	plugins  []*PluginInfo
}

// positionOf returns the position of info. If front is set, a known instance moves to the front. The caller holds l.changing.
func (l *pluginInstances) positionOf(info *PluginInfo, front bool) position {
	p := position{from: l.find(info.AllocID)}
	if p.to = max(p.from, 0); front {
		p.to = 0
	}
	switch {
	case p.from < 0:
		p.plugins = slices.Concat([]*PluginInfo{info}, l.saved)
	case p.from != p.to || l.orderUnsaved || !l.saved[p.from].equal(info):
		p.plugins = l.moved(p.from, p.to, info)
	}
	return p
}

// insertAt moves info to its position and calls apply with its slot, with r.mu held. err is the error of saving the position. The caller
// holds l.changing.
func (r *Store) insertAt(l *pluginInstances, p position, info *PluginInfo, err error, apply func(*pluginInstances, *slot)) error {
	if err != nil && p.from >= 0 && l.saved[p.from].equal(info) {
		// Only the order could not be saved. The next change saves it, so that an instance becomes current even while the disk fails.
		l.saved, l.orderUnsaved, err = p.plugins, true, nil
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.from != p.to {
		s := slot{}
		if p.from >= 0 {
			s = l.slots[p.from]
			l.slots = slices.Delete(l.slots, p.from, p.from+1)
		}
		s.rank = 1
		if len(l.slots) > 0 {
			s.rank = l.slots[0].rank + 1
		}
		l.slots = slices.Insert(l.slots, 0, s)
	}
	apply(l, &l.slots[p.to])
	return nil
}

// Publish implements [keeper.Staged].
func (st *stage) Publish() {
	r := st.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down.Load() || st.discarding {
		return
	}
	if i := st.find(st.pluginInstances); i >= 0 {
		r.publish(st.pluginInstances, &st.pluginInstances.slots[i], st.info)
	}
}

// Discard implements [keeper.Staged].
func (st *stage) Discard() error {
	return st.registry.change(st.pluginInstances.key, st.discardIn)
}

// discardIn is Discard for a caller that holds l.changing.
func (st *stage) discardIn(l *pluginInstances) (err error) {
	r := st.registry
	i, to, shown := st.beginDiscard(l)
	switch {
	case i < 0:
		return nil
	case shown == nil:
		err = r.remove(l, i)
	case to != i || !shown.info.equal(st.info):
		err = r.put(l, l.moved(i, to, shown.info))
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	st.discarding = false
	if err != nil {
		return err
	}
	s := l.slots[i]
	l.slots = slices.Delete(l.slots, i, i+1)
	s.cancelStage()
	if s.shown != nil {
		s.rank = s.shown.rank
		l.slots = slices.Insert(l.slots, to, s)
	}
	return nil
}

// preconnect connects to a new instance, while it is saved and notified, if a caller waits for its plugin and is about to call it.
func (st *stage) preconnect() {
	r := st.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waits[st.pluginInstances.key] != nil && st.pluginInstances.view.Load().find(st.info.AllocID) == nil &&
		(*r.dispensers.Load())[st.pluginInstances.key.Type].conn != nil {
		st.instance = newInstance(r.pool, st.info)
		st.instance.link.preconnect()
	}
}

// dropPreconnected closes the connection that preconnect made, unless st has been published.
func (st *stage) dropPreconnected() {
	if st.instance != nil {
		st.instance.link.retire()
	}
}

// enter stages st in a slot. The caller holds r.mu.
func (st *stage) enter(_ *pluginInstances, s *slot) {
	s.cancelStage()
	s.staged = st
}

// cancelStage cancels the stage of s, if there is one. The caller holds r.mu.
func (s *slot) cancelStage() {
	if s.staged != nil {
		s.staged.dropPreconnected()
	}
	s.staged = nil
}

// beginDiscard marks st as being discarded. It returns the index of its slot in l, or -1 if st was canceled, the index to which the slot
// moves back, and the visible instance of the slot, or nil.
func (st *stage) beginDiscard(l *pluginInstances) (i, to int, shown *instance) {
	st.registry.mu.Lock()
	defer st.registry.mu.Unlock()
	if i = st.find(l); i < 0 {
		return i, i, nil
	}
	st.discarding = true
	shown, to = l.slots[i].shown, i
	for shown != nil && to+1 < len(l.slots) && l.slots[to+1].rank > shown.rank {
		to++
	}
	return i, to, shown
}

// find returns the index of the slot of l in which st is staged, or -1 if st was canceled. The caller holds r.mu.
func (st *stage) find(l *pluginInstances) int {
	return slices.IndexFunc(l.slots, func(s slot) bool { return s.staged == st })
}

// publish makes info visible in s, a slot of l, sends its event, and cancels the stage of s. The caller holds r.mu.
func (r *Store) publish(l *pluginInstances, s *slot, info *PluginInfo) {
	was := s.shown
	var made *instance
	if s.staged != nil && s.staged.info == info {
		made, s.staged.instance = s.staged.instance, nil
	}
	s.cancelStage()
	event := EventTypeRegistered
	if was != nil {
		event = EventTypeUpdated
		if was.info.equal(info) {
			info = was.info
			if was.rank == s.rank {
				event = ""
				if !was.restored && was.dead == nil {
					return
				}
			}
		}
	}
	switch {
	case was != nil && was.dead == nil && *was.info.ConnectionInfo == *info.ConnectionInfo:
		s.shown = &instance{info: info, link: was.link}
	case made != nil:
		s.shown = made
	default:
		s.shown = newInstance(r.pool, info)
	}
	s.shown.rank = s.rank
	r.show(l)
	if made != nil && made.link != l.view.Load().link() { // a newer instance was published first
		made.link.retire()
	}
	if event != "" {
		r.feed.Publish(info.Type, &PluginUpdateEvent{EventType: event, Info: info})
	}
}

// DeregisterPlugin implements [Registry].
func (r *Store) DeregisterPlugin(ptype, name, allocID string) error {
	k, err := named(ptype, name, "deregister")
	if err != nil {
		return err
	}
	return r.change(k, func(l *pluginInstances) error { return r.deregisterIn(l, allocID) })
}

// deregisterIn is DeregisterPlugin for a plugin. The caller holds l.changing.
func (r *Store) deregisterIn(l *pluginInstances, allocID string) error {
	i := l.find(allocID)
	if l.view.Load().find(allocID) == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.unknown(l.key, allocID)
	}
	if err := r.remove(l, i); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := l.slots[i].shown.info
	l.slots = slices.Delete(l.slots, i, i+1)
	r.show(l)
	r.feed.Publish(l.key.Type, &PluginUpdateEvent{EventType: EventTypeDeregistered, Info: gone})
	return nil
}

// ConfirmPlugin implements [keeper.Keeper].
func (r storeKeeper) ConfirmPlugin(ptype, name, allocID string) error {
	return r.mark(plugin.Name{Type: ptype, Name: name}, allocID, func(in *instance) {
		in.restored = false
		if in.dead != nil {
			in.dead, in.link = nil, newInstance(r.pool, in.info).link
		}
	})
}

// MarkUnreachable implements [keeper.Keeper].
func (r storeKeeper) MarkUnreachable(ptype, name, allocID string, reason error) error {
	if reason == nil {
		reason = errors.New("no reason was given")
	}
	return r.mark(plugin.Name{Type: ptype, Name: name}, allocID, func(in *instance) {
		if in.dead == nil {
			in.dead = &UnreachableError{Type: ptype, Name: name, AllocID: allocID, Reason: reason, Since: time.Now()}
		}
	})
}

// mark changes the state of a visible instance, without saving it.
func (r *Store) mark(k plugin.Name, allocID string, change func(*instance)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(); err != nil {
		return err
	}
	l := r.pluginInstances(k)
	if l == nil {
		return r.unknown(k, allocID)
	}
	was := l.view.Load().find(allocID)
	if was == nil {
		return r.unknown(k, allocID)
	}
	now := *was
	change(&now)
	i := slices.IndexFunc(l.slots, func(s slot) bool { return s.shown == was })
	l.slots[i].shown = &now
	r.show(l)
	return nil
}
