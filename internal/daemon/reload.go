package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/plugin"
)

type reloads struct {
	// ended is closed when there is nothing to reload any more.
	ended chan struct{}

	// turn makes reloads, and the end of the daemon, take turns. It is held over Options.Load, and guards what follows.
	turn    sync.Mutex
	running *assembly
	current config.Loaded

	// shown is the present configuration as text, without secrets.
	shown atomic.Pointer[string]

	// mu guards failure, and comes last.
	mu      sync.Mutex
	failure plugin.Condition // of the last reload; OK if it succeeded, or if there was none
}

// configuration is the name of the condition of the last reload.
const configuration = "configuration"

func newReloads(c config.Loaded) *reloads {
	r := &reloads{
		ended:   make(chan struct{}),
		current: c,
		failure: plugin.Condition{Name: configuration, OK: true},
	}
	r.shown.Store(shown(&c))
	return r
}

func shown(c *config.Loaded) *string {
	text, _ := c.Shown().YAML() // it cannot fail: the tree has only maps, lists and texts
	return new(string(text))
}

// begin lets reloads act on what runs.
func (r *reloads) begin(running *assembly) {
	r.turn.Lock()
	defer r.turn.Unlock()
	r.running = running
}

// end waits for a reload that runs and refuses further ones. A second call does nothing.
func (r *reloads) end() {
	r.turn.Lock()
	defer r.turn.Unlock()
	select {
	case <-r.ended:
	default:
		close(r.ended)
	}
}

// Reload reads the configuration again with Options.Load and changes to it, and returns the keys of the configuration file whose values
// changed. Roles, the rules for calls from and to other nodes, handlers, timeouts, the log and the catalogue can change; other plugins are
// not affected, and a registered plugin keeps its client timeout. The answers of the admission plugin are forgotten, and plugins that wait
// for their next attempt are tried at once. If anything else has changed, or the configuration is wrong, Reload changes nothing and
// returns an error; until a reload succeeds, the condition "configuration" is then degraded.
//
// Reload may be called at any time, concurrently too. It blocks until the daemon is ready or ctx ends. The result is also logged and
// published as an event.
func (d *Daemon) Reload(ctx context.Context) (changed []string, err error) {
	if d.options.Load == nil {
		return nil, errors.New("it was set by a program, not read from files")
	}
	r := d.reloads
	select {
	case <-d.ready:
	case <-r.ended:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	select {
	case <-r.ended:
		return nil, server.ErrStopping
	default:
	}
	d.warn(d.options.Notifier.Reloading())
	changed, err = d.reload()
	d.tell(changed, err)
	d.notify("READY=1")
	return changed, err
}

// reload does what Reload says. The turn is held.
func (d *Daemon) reload() (changed []string, err error) {
	r := d.reloads
	next, err := d.options.Load()
	if err == nil {
		err = makeAbsolute(next)
	}
	if err != nil {
		return nil, err
	}
	if err := Validate(*next); err != nil {
		return nil, err
	}
	changed, restart := differences(&r.current, next)
	if len(restart) > 0 {
		return nil, fmt.Errorf("needs a restart: %s; nothing was changed", strings.Join(restart, ", "))
	}
	roles, err := access.NewPolicy(next.Control.Roles)
	if err != nil {
		return nil, err
	}
	runtime, handlers := r.running.runtime, r.running.handlers
	added, removed, err := handlers.changes(handlerKinds(&r.current.Config), handlerKinds(&next.Config))
	if err != nil {
		return nil, err
	}
	// Plugins that are launched or registered from now on have to be admitted again. If the reload fails, that does no harm.
	if admission := runtime.Admission(); admission != nil {
		admission.ClearCache()
	}
	// This comes next because it can fail; it waits for nothing.
	if len(catalogueChanges(&r.current, next)) > 0 {
		if err := d.launch(runtime, next.Catalogue); err != nil {
			return nil, fmt.Errorf("cannot change to the new catalogue: %w", errors.Join(err, closeHandlers(added)))
		}
	}
	// Nothing can fail from here on. The timeouts come first, so that what registers now has the new ones.
	if d.options.SetLog != nil && next.Log != r.current.Log {
		d.options.SetLog(next.Log)
	}
	r.running.guard.Replace(roles)
	r.running.node.Reload(next.Fleet)
	d.timeouts.Store(&next.ClientTimeouts)
	d.warn(runtime.SetTimeouts(next.Timeouts, next.TypeTimeouts)) // Validate has checked them
	// Their plugins are still being deregistered: they have to bear that.
	if err := closeHandlers(r.running.exchange(added, removed)); err != nil {
		d.log.Error("cannot close a plugin handler", "error", err)
	}
	r.current = *next
	r.shown.Store(shown(next))
	runtime.Reconsider()
	return changed, nil
}

// exchange adds and removes handlers, and returns those that are no longer used, by type.
func (a *assembly) exchange(added map[string]cache.PluginHandler, removed []string) (unused map[string]cache.PluginHandler) {
	unused = map[string]cache.PluginHandler{}
	for _, ptype := range removed {
		a.runtime.RemoveHandler(ptype)
		unused[ptype] = a.handlers.use(ptype, nil)
	}
	for ptype, handler := range added {
		a.runtime.AddHandler(ptype, handler)
		unused[ptype] = a.handlers.use(ptype, handler)
	}
	return unused
}

// tell makes known what became of a reload.
func (d *Daemon) tell(changed []string, err error) {
	event := plugin.Event{Time: time.Now(), Kind: plugin.EventReloaded, Message: "the configuration was reloaded: nothing changed"}
	condition := plugin.Condition{Name: configuration, OK: err == nil}
	if err != nil {
		event.Kind, event.Message = plugin.EventReloadFailed, strings.ReplaceAll(err.Error(), "\n", "; ")
		condition.Since = event.Time
		condition.Message = "the configuration was not reloaded, and the one before is in force: " + event.Message
		d.log.Error("configuration not reloaded", "error", event.Message)
	} else {
		if len(changed) > 0 {
			event.Message = "the configuration was reloaded: " + strings.Join(changed, ", ")
		}
		d.log.Info("configuration reloaded", "changed", changed)
	}
	d.reloads.setFailure(condition)
	d.reloads.running.runtime.Publish(event)
}

func (r *reloads) setFailure(c plugin.Condition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !c.OK && !r.failure.OK {
		c.Since = r.failure.Since
	}
	r.failure = c
}

func (r *reloads) condition() plugin.Condition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

// differences returns the keys of the configuration file, in order, whose values differ: those to which a running daemon can change, and
// those that need a restart.
func differences(before, after *config.Loaded) (changed, restart []string) {
	changed = append([]string{}, mapChanges("handlers.", before.Handlers, after.Handlers)...) // never null in JSON
	for _, part := range []struct {
		key     string
		was, is any
	}{
		{"control.roles", before.Control, after.Control},
		{"fleet.offers", before.Fleet.Offers, after.Fleet.Offers},
		{"fleet.serve.allow", before.Fleet.Serve.Allow, after.Fleet.Serve.Allow},
		{"log.level", before.Log.Level, after.Log.Level},
		{"log.format", before.Log.Format, after.Log.Format},
		{"timeouts", before.Timeouts, after.Timeouts},
	} {
		if !reflect.DeepEqual(part.was, part.is) {
			changed = append(changed, part.key)
		}
	}
	changed = append(changed, mapChanges("typeTimeouts.", before.TypeTimeouts, after.TypeTimeouts)...)
	changed = append(changed, mapChanges("clientTimeouts.", before.ClientTimeouts, after.ClientTimeouts)...)
	return append(changed, catalogueChanges(before, after)...), restartKeys(before.Config, after.Config)
}

// restartKeys returns the keys whose values differ, of those that need a restart.
func restartKeys(before, after config.Config) (keys []string) {
	for _, c := range []*config.Config{&before, &after} { // these can be reloaded
		c.Fleet.Offers, c.Fleet.Serve.Allow = nil, nil
	}
	was, is := reflect.ValueOf(before), reflect.ValueOf(after)
	for i := range was.NumField() {
		tag := was.Type().Field(i).Tag
		if tag.Get("restart") != "" && !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
			keys = append(keys, tag.Get("json"))
		}
	}
	return keys
}

// mapChanges returns the keys that only one of two maps has, or with another value, each behind a prefix.
func mapChanges[V comparable](prefix string, before, after map[string]V) []string {
	differ := map[string]bool{}
	for key, was := range before {
		if is, has := after[key]; !has || is != was {
			differ[prefix+key] = true
		}
	}
	for key := range after {
		if _, had := before[key]; !had {
			differ[prefix+key] = true
		}
	}
	return slices.Sorted(maps.Keys(differ))
}

func catalogueChanges(before, after *config.Loaded) []string {
	changes := catalogue.Diff(before.Catalogue, after.Catalogue)
	var keys []string
	for _, p := range slices.Concat(changes.Added, changes.Removed, changes.Changed) {
		keys = append(keys, "plugins."+p.Name)
	}
	slices.Sort(keys)
	return keys
}

// clientTimeout returns the timeout for calls to a plugin, nil for none.
func (d *Daemon) clientTimeout(ptype, name string) *time.Duration {
	byKey := *d.timeouts.Load()
	for _, key := range []string{plugin.Name{Type: ptype, Name: name}.String(), ptype} {
		if timeout, ok := byKey[key]; ok {
			return &timeout
		}
	}
	return nil
}

// Effective returns the present configuration as text, without secrets.
func (d *Daemon) Effective() string { return *d.reloads.shown.Load() }
