package dynamicplugins

import "github.com/patchbay-dev/patchbay/plugin"

// StagePlugin is StagePlugins for one instance.
func (r *Store) StagePlugin(info *PluginInfo) (Staged, error) {
	staged, errs := r.StagePlugins([]*PluginInfo{info})
	return staged[0], errs[0]
}

// Awaited says whether somebody waits for a plugin.
func (r *Store) Awaited(ptype, name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waits[plugin.Name{Type: ptype, Name: name}] != nil
}
