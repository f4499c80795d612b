package pluginruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/keeper"
	"github.com/patchbay-dev/patchbay/plugin"
)

// WaitForPlugins blocks until all of the given plugins are registered, for hosts that must not start work without them. A plugin restored
// from the state counts once it has been found alive. If ctx ends first, the error names each missing plugin with what is known about it,
// and wraps ctx.Err().
func (rt *Runtime) WaitForPlugins(ctx context.Context, plugins ...plugin.Name) error {
	return awaitPlugins(ctx, rt.registry, plugins, rt.Plugins)
}

func awaitPlugins(ctx context.Context, store *dynamicplugins.Store, names []plugin.Name, list func() []plugin.Status) error {
	missing := make([]error, len(names))
	var waiting sync.WaitGroup
	for i, n := range names {
		waiting.Go(func() {
			_, missing[i] = keeper.Of[*dynamicplugins.PluginInfo](store).WaitForConfirmedPlugin(ctx, n.Type, n.Name)
		})
	}
	waiting.Wait()
	if errors.Join(missing...) == nil {
		return nil
	}
	newest := map[plugin.Name]plugin.Status{}
	for _, s := range slices.Backward(list()) {
		newest[s.PluginName()] = s
	}
	for i, n := range names {
		if err := missing[i]; err != nil {
			state := ""
			if s := newest[n]; s.LastError != "" {
				state = fmt.Sprintf(" (it is %s: %s)", s.State, s.LastError)
			} else if s.State != "" {
				state = fmt.Sprintf(" (it is %s)", s.State)
			}
			missing[i] = fmt.Errorf("plugin %s is not registered%s: %w", n, state, cmp.Or(ctx.Err(), err))
		}
	}
	return errors.Join(missing...)
}
