package pluginwatcher

import (
	"flag"

	"github.com/patchbay-dev/patchbay/cache"
)

// The test sets this flag, which a package of the kubelet's tests defines.
var _ = flag.String("v", "", "")

// desired is the desired state of the world of a test, which the kubelet's watcher fills: what this watcher knows.
type desired struct{ watcher *Watcher }

func (d *desired) GetPluginsToRegister() (infos []cache.PluginInfo) {
	plugins, _ := d.watcher.Plugins()
	for _, p := range plugins {
		infos = append(infos, cache.PluginInfo{SocketPath: p.SocketPath, Timestamp: p.FirstSeen})
	}
	return infos
}

func (d *desired) PluginExists(socketPath string) bool {
	for _, p := range d.GetPluginsToRegister() {
		if p.SocketPath == socketPath {
			return true
		}
	}
	return false
}

// GetPluginInfo returns where an example plugin is.
func GetPluginInfo(p *examplePlugin) cache.PluginInfo {
	return cache.PluginInfo{SocketPath: p.endpoint}
}
