package daemon

import (
	"slices"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/internal/launch/machine"
)

// unwell returns the sockets of the launched plugins that say that they do not serve, or do not answer.
func unwell(l launched) map[string]bool {
	sockets := map[string]bool{}
	for _, s := range l.Plugins() {
		if s.Socket != "" && (s.Health == string(machine.NotServing) || s.Health == string(machine.Unresponsive)) {
			sockets[s.Socket] = true
		}
	}
	return sockets
}

// isUnwell says whether the plugin of this node that has a type or role and a name is one of those.
func isUnwell(l launched, plugins func() []patchbay.PluginStatus, ptype, name string) bool {
	sockets := unwell(l)
	return len(sockets) > 0 && slices.ContainsFunc(plugins(), func(s patchbay.PluginStatus) bool {
		return s.Current && s.Name == name && sockets[s.SocketPath] && (s.Type == ptype || slices.Contains(s.Registration.Roles, ptype))
	})
}
