package pluginruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/keeper"
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

// LastEvents returns the last n events, oldest first, as far as they are kept in memory: at most 4,096.
func (rt *Runtime) LastEvents(n int) []plugin.Event { return rt.journal.Last(n) }

// PastEvents returns all events that are kept, oldest first: those in memory and, with Config.EventsPath, the older ones of that file,
// which it reads: up to 8 MiB. The error says why the file could not be read; those in memory are returned nevertheless.
func (rt *Runtime) PastEvents() ([]plugin.Event, error) { return rt.journal.All() }

// LaunchedAs returns the type and name with which a launched plugin is registered, or was last, if an event recorded that.
func (rt *Runtime) LaunchedAs(name string) (plugin.Name, bool) { return rt.journal.LaunchedAs(name) }

// Events returns a channel with the last tail events, as far as they are kept, followed by new ones in order. The channel is closed when
// ctx ends, or after the last event once the Runtime has stopped. A reader that leaves more than 8,192 events unread gets one event of kind
// [plugin.EventResync] instead of them. The Runtime also logs each event to Config.Logger: a host that logs what it receives here logs it
// twice.
func (rt *Runtime) Events(ctx context.Context, tail int) <-chan plugin.Event {
	return rt.journal.Events(ctx, tail)
}

// Publish adds an event of the host's own to the sequence of events. It may be called at any time and does not block; after the Runtime has
// stopped it does nothing. It does not log the event; that is up to the host.
func (rt *Runtime) Publish(e plugin.Event) { rt.journal.Publish(e) }

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
