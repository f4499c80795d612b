package cache_test

import "github.com/patchbay-dev/patchbay/cache"

// theirs is a fake of both states of the world as the kubelet's users write it: it has the documented methods and no others.
type theirs struct{}

func (theirs) AddOrUpdatePlugin(string) error                         { return nil }
func (theirs) AddPlugin(cache.PluginInfo) error                       { return nil }
func (theirs) RemovePlugin(string)                                    {}
func (theirs) GetPluginsToRegister() []cache.PluginInfo               { return nil }
func (theirs) GetRegisteredPlugins() []cache.PluginInfo               { return nil }
func (theirs) PluginExists(string) bool                               { return false }
func (theirs) PluginExistsWithCorrectTimestamp(cache.PluginInfo) bool { return false }

var (
	_ cache.DesiredStateOfWorld = theirs{}
	_ cache.ActualStateOfWorld  = theirs{}
	_ cache.DesiredStateOfWorld = (*cache.Desired)(nil)
)
