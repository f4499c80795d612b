package dynamicplugins

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/patchbay-dev/patchbay/plugin"
)

// DispensePlugin implements [Registry].
func (r *Store) DispensePlugin(ptype, name string) (any, error) {
	client, err := r.dispense(ptype, name)
	if r.observer.Dispense != nil {
		r.observer.Dispense(ptype, err)
	}
	return client, err
}

func (r *Store) dispense(ptype, name string) (any, error) {
	k, err := named(ptype, name, "dispense")
	if err != nil {
		return nil, err
	}
	if err := r.usable(); err != nil {
		return nil, err
	}
	dispenser, ok := (*r.dispensers.Load())[ptype]
	if !ok {
		return nil, &failure{text: "no plugin dispenser found for type: " + ptype, sentinel: ErrNoDispenser}
	}
	if dispenser.conn != nil {
		return r.dispenseConn(k, dispenser.conn)
	}
	v := r.view(k)
	if v == nil {
		return nil, r.missing(k)
	}
	if v.current == nil {
		return nil, v.instances[0].dead
	}
	return dispenser.plain(v.current.info)
}

// StubDispenserForType implements [Registry].
func (r *Store) StubDispenserForType(ptype string, dispenser PluginDispenser) {
	r.mu.Lock()
	defer r.mu.Unlock()
	dispensers := maps.Clone(*r.dispensers.Load())
	original, ok := r.originals[ptype]
	switch {
	case dispenser != nil:
		dispensers[ptype] = dispenserOf{plain: dispenser}
	case ok:
		dispensers[ptype] = original
	default:
		delete(dispensers, ptype)
	}
	r.dispensers.Store(&dispensers)
}

// ListPlugins implements [Registry].
func (r *Store) ListPlugins(ptype string) []*PluginInfo {
	if ptype == "" {
		return nil
	}
	views := r.views(ptype, "")
	plugins := make([]*PluginInfo, 0, len(views))
	for _, v := range views {
		plugins = append(plugins, v.instances[0].info)
	}
	return plugins
}

// Instances returns all instances of a type and name, sorted by type and name, newest first. An empty type or name stands for all.
func (r *Store) Instances(ptype, name string) []Instance {
	var instances []Instance
	for _, v := range r.views(ptype, name) {
		for _, in := range v.instances {
			instances = append(instances, v.describe(in))
		}
	}
	return instances
}

func (v *view) describe(in *instance) Instance {
	i := Instance{Info: in.info, State: InstanceSuperseded}
	switch {
	case in.dead != nil:
		i.State, i.Reason, i.Since = InstanceUnreachable, in.dead.Reason, in.dead.Since
	case in.restored:
		i.State = InstanceRestored
	case in == v.current:
		i.State = InstanceRegistered
	}
	return i
}

// RestoredPlugins implements [keeper.Keeper].
func (r storeKeeper) RestoredPlugins() []*PluginInfo {
	var plugins []*PluginInfo
	for _, v := range r.views("", "") {
		for _, in := range v.instances {
			if in.restored {
				plugins = append(plugins, in.info)
			}
		}
	}
	return plugins
}

// PluginForAlloc implements [Registry].
func (r *Store) PluginForAlloc(ptype, name, allocID string) (*PluginInfo, error) {
	if err := r.usable(); err != nil {
		return nil, err
	}
	k := plugin.Name{Type: ptype, Name: name}
	if in := r.view(k).find(allocID); in != nil {
		return in.info, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return nil, r.unknown(k, allocID)
}

// views returns a consistent snapshot of the views that match a type and name, sorted by them.
func (r *Store) views(ptype, name string) []*view {
	r.mu.Lock()
	views := r.collect(ptype, name)
	r.mu.Unlock()
	return sorted(views)
}

// collect returns the views that match a type and name; an empty one stands for all. The caller holds r.mu.
func (r *Store) collect(ptype, name string) []*view {
	var views []*view
	if ptype != "" && name != "" {
		if v := r.view(plugin.Name{Type: ptype, Name: name}); v != nil {
			views = append(views, v)
		}
		return views
	}
	for _, entry := range r.perPlugin.Range {
		l, _ := entry.(*pluginInstances)
		if v := l.view.Load(); v != nil && (ptype == "" || ptype == l.key.Type) && (name == "" || name == l.key.Name) {
			views = append(views, v)
		}
	}
	return views
}

func sorted(views []*view) []*view {
	slices.SortFunc(views, func(a, b *view) int {
		p, q := a.instances[0].info, b.instances[0].info
		return cmp.Or(strings.Compare(p.Type, q.Type), strings.Compare(p.Name, q.Name))
	})
	return views
}

func infos(views []*view) []*PluginInfo {
	plugins := make([]*PluginInfo, 0, len(views))
	for _, v := range views {
		for _, in := range v.instances {
			plugins = append(plugins, in.info)
		}
	}
	return plugins
}

func (r *Store) missing(k plugin.Name) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.names[k.Type] == 0 {
		return noType(k.Type)
	}
	return noPlugin(k)
}

// unknown returns the error for an instance that is not registered. The caller holds r.mu.
func (r *Store) unknown(k plugin.Name, allocID string) error {
	switch {
	case r.view(k) != nil:
		text := fmt.Sprintf("no plugin for that allocation: plugin %s for type %s has no instance %q", k.Name, k.Type, allocID)
		return &failure{text: text, sentinel: ErrNotFound}
	case r.names[k.Type] > 0:
		return noPlugin(k)
	}
	return noType(k.Type)
}

// PluginsUpdatedCh implements [Registry].
func (r *Store) PluginsUpdatedCh(ctx context.Context, ptype string) <-chan *PluginUpdateEvent {
	return r.feed.Subscribe(ctx, ptype)
}

// Watch returns all current instances, in the order of [Store.Instances], and the channel of PluginsUpdatedCh with the events after that,
// without gaps or duplicates.
func (r *Store) Watch(ctx context.Context, ptype string) ([]*PluginInfo, <-chan *PluginUpdateEvent) {
	r.mu.Lock()
	views := r.collect(ptype, "")
	events := r.feed.Subscribe(ctx, ptype)
	r.mu.Unlock()
	return infos(sorted(views)), events
}

// resync commits the event for a subscriber that has missed too many. The event is filled after commit and after mu is released, before the
// subscriber receives it.
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
