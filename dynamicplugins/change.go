package dynamicplugins

import (
	"errors"
	"slices"
	"time"
)

// stage implements Staged. It is guarded by the registry's mutex.
type stage struct {
	registry *registry
	key      key
	info     *PluginInfo
	leaving  bool // Discard is saving
}

// RegisterPlugin implements Registry.
func (r *registry) RegisterPlugin(info *PluginInfo) error {
	l, s, err := r.stage(info)
	if err != nil {
		return err
	}
	r.publish(l, s)
	r.leave(l)
	return nil
}

// StagePlugin implements Registry.
func (r *registry) StagePlugin(info *PluginInfo) (Staged, error) {
	l, s, err := r.stage(info)
	if err != nil {
		return nil, err
	}
	st := s.staged
	r.leave(l)
	return st, nil
}

// stage enters the lane of info and stages it there. The caller leaves the lane, unless there is an error.
func (r *registry) stage(info *PluginInfo) (*lane, *slot, error) {
	if err := info.check(); err != nil {
		return nil, nil, err
	}
	info = info.clone()
	l, err := r.enter(key{info.Type, info.Name})
	if err != nil {
		return nil, nil, err
	}
	s, _ := l.find(info.AllocID)
	switch {
	case s == nil:
		added := &slot{}
		if err = r.put(l, slices.Insert(l.savedForm(nil, nil), 0, info)); err == nil {
			s = added
			l.slots = slices.Insert(l.slots, 0, s)
		}
	case !s.saved().equal(info):
		err = r.put(l, l.savedForm(s, info))
	}
	if err != nil {
		r.leave(l)
		return nil, nil, err
	}
	s.staged = &stage{registry: r, key: l.key, info: info}
	return l, s, nil
}

// Publish implements Staged.
func (st *stage) Publish() {
	r := st.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down.Load() || st.leaving {
		return
	}
	if l, s := st.find(); s != nil {
		r.publish(l, s)
	}
}

// Discard implements Staged.
func (st *stage) Discard() error {
	r := st.registry
	l, err := r.enter(st.key)
	if err != nil {
		return err
	}
	defer r.leave(l)
	_, s := st.find()
	if s == nil {
		return nil
	}
	st.leaving = true
	if s.shown == nil {
		err = r.put(l, l.savedForm(s, nil))
	} else if !s.shown.info.equal(st.info) {
		err = r.put(l, l.savedForm(s, s.shown.info))
	}
	st.leaving = false
	if err != nil {
		return err
	}
	s.staged = nil
	if s.shown == nil {
		l.slots = slices.DeleteFunc(l.slots, func(other *slot) bool { return other == s })
	}
	return nil
}

// find returns where st is staged, or nil if it is void. The caller holds r.mu.
func (st *stage) find() (*lane, *slot) {
	l := st.registry.lanes[st.key.ptype][st.key.name]
	if l == nil {
		return nil, nil
	}
	for _, s := range l.slots {
		if s.staged == st {
			return l, s
		}
	}
	return nil, nil
}

// publish makes what is staged in s visible and sends its event. The caller holds r.mu.
func (r *registry) publish(l *lane, s *slot) {
	info, was := s.staged.info, s.shown
	s.staged = nil
	event := EventTypeRegistered
	now := &instance{info: info}
	if was != nil {
		event = EventTypeUpdated
		if was.info.equal(info) {
			if !was.restored && was.dead == nil {
				return
			}
			event = ""
			now.info = was.info
		}
		if was.dead == nil && *was.info.ConnectionInfo == *info.ConnectionInfo {
			now.link = was.link
		}
	}
	if now.link == nil {
		now.link = r.pool.link(info.ConnectionInfo.SocketPath)
	}
	s.shown = now
	r.show(l)
	if event != "" {
		r.feed.Publish(info.Type, &PluginUpdateEvent{EventType: event, Info: info})
	}
}

// DeregisterPlugin implements Registry.
func (r *registry) DeregisterPlugin(ptype, name, allocID string) error {
	switch {
	case ptype == "":
		return invalid("must specify plugin type to deregister")
	case name == "":
		return invalid("must specify plugin name to deregister")
	}
	l, err := r.enter(key{ptype, name})
	if err != nil {
		return err
	}
	defer r.leave(l)
	s, i := l.find(allocID)
	if s == nil || s.shown == nil {
		return r.unknown(l.key, allocID)
	}
	if err := r.put(l, l.savedForm(s, nil)); err != nil {
		return err
	}
	l.slots = slices.Delete(l.slots, i, i+1)
	r.show(l)
	r.feed.Publish(ptype, &PluginUpdateEvent{EventType: EventTypeDeregistered, Info: s.shown.info})
	return nil
}

// ConfirmPlugin implements Registry.
func (r *registry) ConfirmPlugin(ptype, name, allocID string) error {
	return r.mark(key{ptype, name}, allocID, func(in *instance) { in.restored = false })
}

// MarkUnreachable implements Registry.
func (r *registry) MarkUnreachable(ptype, name, allocID string, reason error) error {
	if reason == nil {
		reason = errors.New("no reason was given")
	}
	return r.mark(key{ptype, name}, allocID, func(in *instance) {
		if in.dead == nil {
			in.dead = &UnreachableError{Type: ptype, Name: name, AllocID: allocID, Reason: reason, Since: time.Now()}
		}
	})
}

// mark changes the state of a visible instance, in memory only.
func (r *registry) mark(k key, allocID string, change func(*instance)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.usable(); err != nil {
		return err
	}
	l := r.lane(k)
	if l == nil {
		return r.unknown(k, allocID)
	}
	s, _ := l.find(allocID)
	if s == nil || s.shown == nil {
		return r.unknown(k, allocID)
	}
	now := *s.shown
	change(&now)
	s.shown = &now
	r.show(l)
	return nil
}
