package dynamicplugins

import "context"

// PluginsUpdatedCh implements [Registry].
func (r *Store) PluginsUpdatedCh(ctx context.Context, ptype string) <-chan *PluginUpdateEvent {
	return r.feed.Subscribe(ctx, ptype)
}

// Watch is PluginsUpdatedCh together with all instances that there are at the moment, in the order of Instances: the events
// follow on them without gap and without repeat.
func (r *Store) Watch(ctx context.Context, ptype string) ([]*PluginInfo, <-chan *PluginUpdateEvent) {
	r.mu.Lock()
	views := r.collect(ptype, "")
	events := r.feed.Subscribe(ctx, ptype)
	r.mu.Unlock()
	return infos(sorted(views)), events
}

// resync makes the event for a subscriber that has missed too much. The event is filled after commit, when the lock is free
// again and the subscriber does not have it yet.
func (r *Store) resync(ptype string, commit func(*PluginUpdateEvent)) {
	if r.observer.Resync != nil {
		r.observer.Resync()
	}
	event := &PluginUpdateEvent{EventType: EventTypeResync}
	r.mu.Lock()
	views := r.collect(ptype, "")
	commit(event)
	r.mu.Unlock()
	event.Plugins = infos(sorted(views))
}
