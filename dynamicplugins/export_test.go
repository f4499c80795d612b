package dynamicplugins

// StagePlugin is StagePlugins for one instance.
func (r *Store) StagePlugin(info *PluginInfo) (Staged, error) {
	staged, errs := r.StagePlugins([]*PluginInfo{info})
	return staged[0], errs[0]
}
