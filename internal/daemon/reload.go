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
	// ended is closed when the daemon can no longer reload.
	ended chan struct{}

	// turn is held during a reload, including Options.Load, and by end. It guards running and current.
	turn    sync.Mutex
	running *assembly
	current config.Loaded

	// shown is the present configuration as text, without secrets.
	shown atomic.Pointer[string]

	// mu guards failure. It is the last lock to be taken.
	mu      sync.Mutex
	failure plugin.Condition // result of the last reload; OK if there was none
}

// configuration is the name of the condition with the result of the last reload.
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

// begin sets the parts on which reloads act.
func (r *reloads) begin(running *assembly) {
	r.turn.Lock()
	defer r.turn.Unlock()
	r.running = running
}

// end waits until no reload is in progress, and refuses further ones. It may be called again.
func (r *reloads) end() {
	r.turn.Lock()
	defer r.turn.Unlock()
	select {
	case <-r.ended:
	default:
		close(r.ended)
	}
}

// Reload reads the configuration again with Options.Load, applies it, and returns the keys of the configuration file whose values changed.
// Roles, the rules for calls from and to other nodes, handlers, timeouts, the log and the catalogue can change. Plugins that are not
// concerned are not disturbed, and a registered plugin keeps its client timeout. Reload clears the cache of the admission plugin, and
// immediately retries plugins that wait for another attempt. If anything else has changed, or the configuration is wrong, Reload changes
// nothing and returns an error; until a reload succeeds, the condition "configuration" is then degraded.
//
// Reload may be called at any time, also concurrently. It blocks until the daemon is ready or ctx is done. The result is also logged and
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
	d.report(changed, err)
	d.notify("READY=1")
	return changed, err
}

// reload implements Reload. r.turn is held.
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
	// From now on, plugins must be admitted again. This does no harm if the reload fails.
	if admission := runtime.Admission(); admission != nil {
		admission.ClearCache()
	}
	// Set the catalogue first, because it is the only remaining step that can fail. It does not wait for plugins.
	if len(catalogueChanges(&r.current, next)) > 0 {
		if err := d.launch(runtime, next.Catalogue); err != nil {
			return nil, fmt.Errorf("cannot change to the new catalogue: %w", errors.Join(err, closeHandlers(added)))
		}
	}
	// From here on nothing can fail. Set the timeouts first, so that plugins that register now have the new ones.
	if d.options.SetLog != nil && next.Log != r.current.Log {
		d.options.SetLog(next.Log)
	}
	r.running.guard.Replace(roles)
	r.running.node.Reload(next.Fleet)
	d.timeouts.Store(&next.ClientTimeouts)
	d.warn(runtime.SetTimeouts(next.Timeouts, next.TypeTimeouts)) // Validate has checked the timeouts
	// Closed handlers must tolerate that their plugins are still being deregistered.
	if err := closeHandlers(r.running.exchange(added, removed)); err != nil {
		d.log.Error("cannot close a plugin handler", "error", err)
	}
	r.current = *next
	r.shown.Store(shown(next))
	runtime.Reconsider()
	return changed, nil
}

// exchange adds and removes handlers, and returns the unused ones by type.
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

// report logs and publishes the result of a reload, and sets the condition.
func (d *Daemon) report(changed []string, err error) {
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

// differences returns the keys of the configuration file, in order, whose values differ. changed are keys that can be reloaded, and restart
// those that need a restart.
func differences(before, after *config.Loaded) (changed, restart []string) {
	changed = append([]string{}, mapChanges("handlers.", before.Handlers, after.Handlers)...) // not nil, so that JSON has a list
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

// restartKeys returns the keys that need a restart and whose values differ.
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

// mapChanges returns the keys whose values differ between two maps, or that are in only one of them, with a prefix.
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

// clientTimeout returns the timeout for calls to a plugin; nil for none.
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
