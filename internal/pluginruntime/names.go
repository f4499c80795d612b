package pluginruntime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// defaultNameGrace applies if the NameGrace of a registration is zero.
const defaultNameGrace = 10 * time.Minute

var (
	// ErrUnknown is the error of [Runtime.Retry] for an unknown plugin.
	ErrUnknown = errors.New("no such plugin is known")
	// ErrNotWaiting is wrapped by the error of [Runtime.Retry] if no instance of the plugin waits for another attempt.
	ErrNotWaiting = errors.New("nothing of it is waiting for another attempt")
	// ErrNotReserved is the error of [Runtime.ReleaseName] if the name is not reserved.
	ErrNotReserved = errors.New("the name is not reserved")
)

// Retry immediately retries the instances of a plugin that failed, were refused, or have no handler, and resets their back-off. The type
// may be a role. It does not block; the events report the outcome. The error is [ErrUnknown] or wraps [ErrNotWaiting].
func (rt *Runtime) Retry(pluginType, pluginName string) error {
	if r := rt.Reconciler(); r != nil && r.Retry(pluginType, pluginName) {
		return nil
	}
	plugins := rt.PluginsNamed(pluginName)
	i := slices.IndexFunc(plugins, func(s plugin.Status) bool {
		return s.Name == pluginName && (s.Type == pluginType || slices.Contains(s.Registration.Roles, pluginType))
	})
	if i < 0 {
		return ErrUnknown
	}
	return fmt.Errorf("%w: it is %s", ErrNotWaiting, plugins[i].State)
}

// Reservation returns the reservation of a name, if it is reserved and no plugin of that name is registered; see Config.NameGrace. The type
// is the announced one, not a role.
func (rt *Runtime) Reservation(name plugin.Name) (reservation plugin.Reservation, ok bool) {
	if r := rt.Reconciler(); r != nil {
		return r.Reservation(name)
	}
	return plugin.Reservation{}, false
}

// ReleaseName frees a reserved name and immediately retries plugins that were refused because of it. It blocks until the change is saved.
// ctx bounds the wait before the save, not the save itself. The error is [ErrNotReserved] if the name is not reserved, as is always so
// while a plugin of that name is registered.
func (rt *Runtime) ReleaseName(ctx context.Context, pluginType, pluginName string) error {
	name := plugin.Name{Type: pluginType, Name: pluginName}
	r := rt.Reconciler()
	if r == nil {
		return ErrNotReserved
	}
	if _, ok := r.Reservation(name); !ok {
		return ErrNotReserved
	}
	return r.ReleaseName(ctx, name)
}
