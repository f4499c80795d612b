package patchbay

import (
	"context"

	"github.com/patchbay-dev/patchbay/internal/discover/enrol"
)

// PluginName names one plugin. Its fields are Type and Name; as text it is TYPE/NAME.
type PluginName = enrol.Name

// WaitForPlugins waits until every one of the given plugins is registered: a gate for hosts that must not start work before certain
// plugins are there. A plugin that is only known from before a restart does not count before it was found alive. The deadline is that of
// ctx. The error names each plugin that was missing when ctx ended, with what is known of it, and wraps ctx.Err().
func (rt *Runtime) WaitForPlugins(ctx context.Context, plugins ...PluginName) error {
	return enrol.Await(ctx, rt.registry, plugins, rt.Plugins)
}
