package patchbay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
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
			if _, err := rt.registry.WaitForConfirmedPlugin(ctx, p.Type, p.Name); err != nil {
				missing[i] = fmt.Errorf("plugin %s is not registered%s: %w", p, rt.stateOf(p), cmp.Or(ctx.Err(), err))
			}
		})
	}
	waiting.Wait()
	return errors.Join(missing...)
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
