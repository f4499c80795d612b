package patchbay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
)

// defaultNameGrace is the one of the zero [Config].
const defaultNameGrace = 10 * time.Minute

var (
	// ErrUnknown is the error of a method of a [Runtime] that was asked about a plugin that it does not know.
	ErrUnknown = errors.New("no such plugin is known")
	// ErrNotWaiting is wrapped by the error of [Runtime.Retry] if nothing of the plugin waits for another attempt.
	ErrNotWaiting = errors.New("nothing of it is waiting for another attempt")
	// ErrNotKept is the error of [Runtime.ReleaseName] if the name is not reserved.
	ErrNotKept = errors.New("the name is not reserved")
)

// KeptName is a name that stays a user's until a time, though no plugin of it is registered; see Config.NameGrace.
type KeptName = reconciler.KeptName

// Retry immediately retries the instances of a plugin that failed, were refused, or have no handler, and resets their back-off. The type
// may be a role. It does not block; the events report the outcome. The error is [ErrUnknown] or wraps [ErrNotWaiting].
func (rt *Runtime) Retry(pluginType, pluginName string) error {
	if r := rt.watcher.Reconciler(); r != nil && r.Retry(pluginType, pluginName) {
		return nil
	}
	plugins := rt.PluginsNamed(pluginName)
	i := slices.IndexFunc(plugins, func(s PluginStatus) bool {
		return s.Name == pluginName && (s.Type == pluginType || slices.Contains(s.Registration.Roles, pluginType))
	})
	if i < 0 {
		return ErrUnknown
	}
	return fmt.Errorf("%w: it is %s", ErrNotWaiting, plugins[i].State)
}

// KeptName returns for whom a name is reserved, if it is and no plugin of that name is registered. The type is the announced one, not a
// role.
func (rt *Runtime) KeptName(pluginType, pluginName string) (kept KeptName, is bool) {
	if r := rt.watcher.Reconciler(); r != nil {
		return r.KeptName(pluginType, pluginName)
	}
	return KeptName{}, false
}

// ReleaseName frees a reserved name and immediately retries plugins that were refused because of it. It blocks until the change is saved or
// ctx ends. The error is [ErrNotKept] if the name is not reserved, as is always so while a plugin of that name is registered.
func (rt *Runtime) ReleaseName(ctx context.Context, pluginType, pluginName string) error {
	r := rt.watcher.Reconciler()
	if r == nil {
		return ErrNotKept
	}
	if _, kept := r.KeptName(pluginType, pluginName); !kept {
		return ErrNotKept
	}
	return r.ReleaseName(ctx, pluginType, pluginName)
}
