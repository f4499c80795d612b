package daemon

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/cache"
)

// HandlerKind names what a daemon does with the plugins of a type.
type HandlerKind string

// HandlerAccept accepts every plugin and does nothing else; see [patchbay.AcceptHandler].
const HandlerAccept HandlerKind = "accept"

// newHandlers makes a handler of each kind that exists.
var newHandlers = map[HandlerKind]func() cache.PluginHandler{
	HandlerAccept: patchbay.AcceptHandler,
}

// DefaultTypes are the plugin types that every daemon accepts.
func DefaultTypes() []string {
	return []string{registerapi.CSIPlugin, registerapi.DevicePlugin, registerapi.DRAPlugin}
}

// handlers returns the kind of handler of every type that has one.
func (c Config) handlers() map[string]HandlerKind {
	all := map[string]HandlerKind{}
	for _, ptype := range DefaultTypes() {
		all[ptype] = HandlerAccept
	}
	maps.Copy(all, c.Handlers)
	return all
}

func validateHandler(ptype string, kind HandlerKind) error {
	if err := validateType(ptype); err != nil {
		return err
	}
	if newHandlers[kind] == nil {
		return fmt.Errorf("plugin type %s cannot have a handler of kind %q: the kinds that exist are %s", ptype, kind, kinds())
	}
	return nil
}

// validateType checks what the configuration calls a plugin type. In TYPE/NAME the type ends at the first slash.
func validateType(ptype string) error {
	if ptype == "" || strings.Contains(ptype, "/") {
		return fmt.Errorf("%q is no plugin type: a type is not empty and has no slash, for example MyPlugin", ptype)
	}
	return nil
}

// validateTypeOrPlugin checks TYPE or TYPE/NAME.
func validateTypeOrPlugin(key string) error {
	if ptype, name, isPlugin := strings.Cut(key, "/"); ptype == "" || isPlugin && name == "" {
		return fmt.Errorf("%q is neither a plugin type nor a plugin: write TYPE or TYPE/NAME, for example CSIPlugin/hostpath.csi.k8s.io", key)
	}
	return nil
}

func kinds() string {
	var names []string
	for _, kind := range slices.Sorted(maps.Keys(newHandlers)) {
		names = append(names, string(kind))
	}
	return strings.Join(names, ", ")
}
