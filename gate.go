package patchbay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// PluginName names one plugin.
type PluginName struct{ Type, Name string }

func (n PluginName) String() string { return n.Type + "/" + n.Name }

// WaitForPlugins waits until every one of the given plugins is registered: a gate for hosts that must not start work before certain
// plugins are there. A plugin that is only known from before a restart does not count before it was found alive. The deadline is that of
// ctx. The error names each plugin that was missing when ctx ended, with what is known of it, and wraps ctx.Err().
func (rt *Runtime) WaitForPlugins(ctx context.Context, plugins ...PluginName) error {
	missing := make([]error, len(plugins))
	var waiting sync.WaitGroup
	for i, p := range plugins {
		waiting.Go(func() {
			if err := rt.awaitRegistered(ctx, p); err != nil {
				missing[i] = fmt.Errorf("plugin %s is not registered%s: %w", p, rt.stateOf(p), err)
			}
		})
	}
	waiting.Wait()
	return errors.Join(missing...)
}

// awaitRegistered waits until a plugin has a current instance that is known to live.
func (rt *Runtime) awaitRegistered(ctx context.Context, p PluginName) error {
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	// Two sources: of what the host itself registers the pipeline knows nothing, and of a restored plugin that was found alive as it was
	// the registry has no news.
	changes := rt.registry.PluginsUpdatedCh(watching, p.Type)
	events := rt.Events(watching, 0)
	for {
		isCurrent := func(in dynamicplugins.Instance) bool { return in.State == dynamicplugins.InstanceRegistered }
		if slices.ContainsFunc(rt.registry.Instances(p.Type, p.Name), isCurrent) {
			return nil
		}
		var open bool
		select {
		case <-ctx.Done():
			return ctx.Err()
		case _, open = <-changes:
		case _, open = <-events:
		}
		if !open {
			return cmp.Or(ctx.Err(), dynamicplugins.ErrShutdown)
		}
	}
}

// stateOf says in which state the newest instance of a plugin is, if there is one.
func (rt *Runtime) stateOf(p PluginName) string {
	for _, s := range rt.Plugins() {
		if s.Type == p.Type && s.Name == p.Name {
			if s.LastError != "" {
				return fmt.Sprintf(" (it is %s: %s)", s.State, s.LastError)
			}
			return fmt.Sprintf(" (it is %s)", s.State)
		}
	}
	return ""
}
