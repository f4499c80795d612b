package daemon

import (
	"fmt"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/internal/foreign"
)

// pluginName reads TYPE/NAME.
func pluginName(text string) (_ patchbay.PluginName, ok bool) {
	ptype, name, ok := client.ParsePlugin(text)
	return patchbay.PluginName{Type: ptype, Name: name}, ok
}

// nameOf returns the name of a plugin under which it registered.
func nameOf(s patchbay.PluginStatus) patchbay.PluginName {
	return patchbay.PluginName{Type: s.Type, Name: s.Name}
}

// validateType checks what the configuration calls a plugin type.
func validateType(ptype string) error {
	if !foreign.IsType(ptype) {
		return fmt.Errorf("%q is no plugin type: a type is not empty and has no slash, for example MyPlugin", ptype)
	}
	return nil
}

// validateTypeOrPlugin checks TYPE or TYPE/NAME.
func validateTypeOrPlugin(key string) error {
	if _, isPlugin := pluginName(key); !isPlugin && !foreign.IsType(key) {
		return fmt.Errorf("%q is neither a plugin type nor a plugin: write TYPE or TYPE/NAME, for example CSIPlugin/hostpath.csi.k8s.io", key)
	}
	return nil
}
