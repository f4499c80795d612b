package patchbay

import (
	"context"

	"github.com/patchbay-dev/patchbay/internal/discover/enrol"
)

// PluginName names one plugin. Its fields are Type and Name; as text it is TYPE/NAME.
type PluginName = enrol.Name

// WaitForPlugins blocks until all of the given plugins are registered, for hosts that must not start work without them. A plugin restored
// from the state counts once it has been found alive. If ctx ends first, the error names each missing plugin with what is known about it,
// and wraps ctx.Err().
func (rt *Runtime) WaitForPlugins(ctx context.Context, plugins ...PluginName) error {
	return enrol.Await(ctx, rt.registry, plugins, rt.Plugins)
}
