package patchbay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/reconciler"
)

// defaultNameGrace is the one of the zero [Config].
const defaultNameGrace = 10 * time.Minute

var (
	// ErrUnknown is the error of a method of a [Runtime] that was asked about a plugin that it does not know.
	ErrUnknown = errors.New("no such plugin is known")
	// ErrNotWaiting is wrapped by the error of [Runtime.Retry] if nothing of the plugin waits for another attempt.
	ErrNotWaiting = errors.New("nothing of it waits for another attempt")
	// ErrNotKept is the error of [Runtime.ReleaseName] if the name is kept for nobody.
	ErrNotKept = errors.New("the name is kept for nobody")
)

// KeptName is a name that stays a user's until a time, though no plugin of it is registered; see Config.NameGrace.
type KeptName = reconciler.KeptName

// Retry tries at once what waits of a plugin: what failed, was refused, or has no handler. Its back-off starts over. The type is the one
// that the plugin announced, or a role of it. It does not block: what comes of it is in the events. An error is [ErrUnknown] or wraps
// [ErrNotWaiting].
func (rt *Runtime) Retry(pluginType, pluginName string) error {
	if rt.watcher.Retry(pluginType, pluginName) {
		return nil
	}
	plugins := rt.Plugins()
	i := slices.IndexFunc(plugins, func(s PluginStatus) bool {
		return s.Name == pluginName && (s.Type == pluginType || slices.Contains(s.Registration.Roles, pluginType))
	})
	if i < 0 {
		return ErrUnknown
	}
	return fmt.Errorf("%w: it is %s", ErrNotWaiting, plugins[i].State)
}

// KeptName returns whose a name is, if it is kept for a user and no plugin of it is registered. The type is the one that its plugins
// announced.
func (rt *Runtime) KeptName(pluginType, pluginName string) (kept KeptName, is bool) {
	return rt.watcher.KeptName(pluginType, pluginName)
}

// ReleaseName ends what keeps a name for a user, and tries at once who was refused for it. It blocks until that is saved, or ctx ends. The
// error is [ErrNotKept] if it is kept for nobody, which is so while a plugin of it is registered.
func (rt *Runtime) ReleaseName(ctx context.Context, pluginType, pluginName string) error {
	if _, kept := rt.KeptName(pluginType, pluginName); !kept {
		return ErrNotKept
	}
	return rt.watcher.ReleaseName(ctx, pluginType, pluginName)
}
