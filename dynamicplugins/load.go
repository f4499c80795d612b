package dynamicplugins

import (
	"container/list"
	"fmt"

	"github.com/patchbay-dev/patchbay/plugin"
)

// load fills a new registry with what the storage holds, as restored instances in the order in which they were saved.
func (r *Store) load(storage StateStorage) error {
	loaded, kept, err := stored(storage)
	if err != nil {
		return &failure{text: "cannot load the plugin registry's state", sentinel: ErrNotLoaded, cause: err}
	}
	r.save, r.reserved.restored = newSaver(storage, loaded), kept
	for k, plugins := range loaded {
		l := &pluginInstances{key: k, saved: plugins}
		for i, info := range plugins {
			in := newInstance(r.pool, info)
			in.restored, in.rank = true, uint64(len(plugins)-i)
			l.slots = append(l.slots, slot{shown: in, rank: in.rank})
		}
		r.perPlugin.Store(k, l)
		r.show(l)
	}
	return nil
}

// stored reads the state from a storage and checks it: nothing that is in it may be dropped without a word.
func stored(storage StateStorage) (map[plugin.Name][]*PluginInfo, []plugin.Reservation, error) {
	loaded := make(map[plugin.Name][]*PluginInfo)
	if storage == nil {
		return loaded, nil, nil
	}
	state, err := storage.GetDynamicPluginRegistryState()
	if err != nil || state == nil {
		return loaded, nil, err
	}
	for ptype, names := range state.Plugins {
		for name, instances := range names {
			k := plugin.Name{Type: ptype, Name: name}
			plugins, err := storedPlugins(k, instances)
			if err != nil {
				return nil, nil, fmt.Errorf("plugin %q for type %q: %w", name, ptype, err)
			}
			if len(plugins) > 0 {
				loaded[k] = plugins
			}
		}
	}
	return loaded, state.Reservations, nil
}

func storedPlugins(k plugin.Name, instances *list.List) ([]*PluginInfo, error) {
	if instances == nil {
		return nil, nil
	}
	var plugins []*PluginInfo
	known := make(map[string]bool, instances.Len())
	for e := instances.Front(); e != nil; e = e.Next() {
		info, ok := e.Value.(*PluginInfo)
		if !ok {
			return nil, fmt.Errorf("an instance is stored as %T instead of *PluginInfo", e.Value)
		}
		if err := info.check(); err != nil {
			return nil, err
		}
		if info.Type != k.Type || info.Name != k.Name {
			return nil, fmt.Errorf("it has an instance of plugin %q for type %q", info.Name, info.Type)
		}
		if known[info.AllocID] {
			return nil, fmt.Errorf("it has two instances %q", info.AllocID)
		}
		known[info.AllocID] = true
		plugins = append(plugins, fromStored(info))
	}
	return plugins, nil
}
