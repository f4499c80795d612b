package dynamicplugins_test

import (
	"context"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// theirs is a fake of Nomad's registry as its users write it: it has the methods of Nomad 1.11 and no others.
type theirs struct{}

func (theirs) RegisterPlugin(*dynamicplugins.PluginInfo) error             { return nil }
func (theirs) DeregisterPlugin(_, _, _ string) error                       { return nil }
func (theirs) ListPlugins(string) []*dynamicplugins.PluginInfo             { return nil }
func (theirs) DispensePlugin(_, _ string) (any, error)                     { return theirs{}, nil }
func (theirs) StubDispenserForType(string, dynamicplugins.PluginDispenser) {}
func (theirs) Shutdown()                                                   {}

func (theirs) PluginForAlloc(_, _, _ string) (*dynamicplugins.PluginInfo, error) {
	return &dynamicplugins.PluginInfo{}, nil
}

func (theirs) WaitForPlugin(context.Context, string, string) (*dynamicplugins.PluginInfo, error) {
	return &dynamicplugins.PluginInfo{}, nil
}

func (theirs) PluginsUpdatedCh(context.Context, string) <-chan *dynamicplugins.PluginUpdateEvent {
	return nil
}

var (
	_ dynamicplugins.Registry = theirs{}
	_ dynamicplugins.Registry = (*dynamicplugins.Store)(nil)
	_                         = dynamicplugins.Registry.WaitForPlugin
	// What helps to use a registry takes theirs too.
	_, _ = dynamicplugins.Dispense[theirs](theirs{}, "", "")
)
