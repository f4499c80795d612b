package cache

import (
	"maps"
	"slices"
	"sync"
)

// ActualStateOfWorld is the set of registered plugins, by socket path. Its methods are safe for concurrent use and do not block.
type ActualStateOfWorld interface {
	// GetRegisteredPlugins returns all registered plugins, sorted by path.
	GetRegisteredPlugins() []PluginInfo
	// AddPlugin adds the given plugin. An empty socket path is an error. There is no update: to replace a plugin whose socket was
	// recreated, remove it and add it with the new timestamp.
	AddPlugin(pluginInfo PluginInfo) error
	// RemovePlugin removes the plugin with the given socket path. It is a no-op if there is none.
	RemovePlugin(socketPath string)
	// PluginExistsWithCorrectTimestamp reports whether the given appearance of a plugin is registered: with the same socket path, timestamp
	// and, if both have one, the same number of appearance.
	PluginExistsWithCorrectTimestamp(pluginInfo PluginInfo) bool
}

// NewActualStateOfWorld returns an empty actual state of the world.
func NewActualStateOfWorld() ActualStateOfWorld {
	return &actualStateOfWorld{plugins: map[string]PluginInfo{}}
}

type actualStateOfWorld struct {
	mu      sync.RWMutex
	plugins map[string]PluginInfo
}

func (asw *actualStateOfWorld) AddPlugin(pluginInfo PluginInfo) error {
	if pluginInfo.SocketPath == "" {
		return errSocketPathEmpty
	}
	asw.mu.Lock()
	defer asw.mu.Unlock()
	asw.plugins[pluginInfo.SocketPath] = pluginInfo
	return nil
}

func (asw *actualStateOfWorld) RemovePlugin(socketPath string) {
	asw.mu.Lock()
	defer asw.mu.Unlock()
	delete(asw.plugins, socketPath)
}

func (asw *actualStateOfWorld) GetRegisteredPlugins() []PluginInfo {
	asw.mu.RLock()
	defer asw.mu.RUnlock()
	return sortedByPath(slices.Collect(maps.Values(asw.plugins)))
}

func (asw *actualStateOfWorld) PluginExistsWithCorrectTimestamp(pluginInfo PluginInfo) bool {
	asw.mu.RLock()
	defer asw.mu.RUnlock()
	known, ok := asw.plugins[pluginInfo.SocketPath]
	a, b := known.Appearance, pluginInfo.Appearance // zero if the caller set only the kubelet's fields
	return ok && known.Timestamp.Equal(pluginInfo.Timestamp) && (a == 0 || b == 0 || a == b)
}
