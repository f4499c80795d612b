package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// The kinds of events of the daemon itself.
const (
	// EventReloaded says that a reload succeeded, and what changed.
	EventReloaded reconciler.EventKind = "reloaded"
	// EventReloadFailed says that a reload failed and changed nothing, and why.
	EventReloadFailed reconciler.EventKind = "reload-failed"
)

// reloads is the state of [Daemon.Reload].
type reloads struct {
	// begun is closed when there is a runtime, ended when there is none any more.
	begun, ended chan struct{}

	// turn makes reloads, and the end of the daemon, take turns. It is held over Config.Load, and guards what follows.
	turn    sync.Mutex
	runtime *patchbay.Runtime
	current Config

	// mu guards failure, and comes last.
	mu      sync.Mutex
	failure patchbay.Condition // of the last reload; OK if it succeeded, or if there was none
}

// configuration is the name of the condition of the last reload.
const configuration = "configuration"

func newReloads(config Config) *reloads {
	return &reloads{
		begun: make(chan struct{}), ended: make(chan struct{}),
		current: config,
		failure: patchbay.Condition{Name: configuration, OK: true},
	}
}

// begin lets reloads act on a runtime.
func (r *reloads) begin(runtime *patchbay.Runtime) {
	r.turn.Lock()
	defer r.turn.Unlock()
	r.runtime = runtime
	close(r.begun)
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

// Reload reads the configuration anew with Config.Load and changes to it, and returns the keys of the configuration file whose values
// changed. Roles, the rules for calls from other nodes, handlers, timeouts, the log and the catalogue can change; plugins that are not
// concerned notice nothing, and one that is registered keeps the client timeout with which it was. The answers of the admission plugin are
// forgotten, and plugins that wait for their next attempt are tried at once. If anything else has changed, or the configuration is wrong,
// Reload changes nothing and returns an error; until a reload succeeds, the condition "configuration" is then degraded.
//
// Reload may be called at any time, concurrently too. It blocks until the daemon is up or ctx ends. What became of it is also logged
// and published as an event.
func (d *Daemon) Reload(ctx context.Context) (changed []string, err error) {
	if d.config.Load == nil {
		return nil, errors.New("cannot reload the configuration: this daemon was given it by a program, and not by files")
	}
	r := d.reloads
	select {
	case <-r.begun:
	case <-r.ended:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	select {
	case <-r.ended:
		return nil, errStopping
	default:
	}
	d.warn(d.config.Notifier.Reloading())
	changed, err = d.reload()
	d.tell(changed, err)
	d.notify("READY=1")
	return changed, err
}

// reload does what Reload says. The turn is held.
func (d *Daemon) reload() (changed []string, err error) {
	r := d.reloads
	next, err := d.config.Load()
	if err != nil {
		return nil, err
	}
	if err := next.Validate(); err != nil {
		return nil, err
	}
	changed, restart := differences(r.current, next)
	if len(restart) > 0 {
		return nil, fmt.Errorf("needs a restart: %s; nothing was changed", strings.Join(restart, ", "))
	}
	roles, err := next.Roles.policy()
	if err != nil {
		return nil, err
	}
	added, removed, err := d.handlerChanges(r.current, next)
	if err != nil {
		return nil, err
	}
	// What is launched or registered from now on has to be admitted anew. If the reload fails, an answer is only asked for again.
	if admission := r.runtime.Admission(); admission != nil {
		admission.ClearCache()
	}
	// This comes next because it can fail; it waits for nothing.
	if len(catalogueChanges(r.current, next)) > 0 {
		if err := d.launch(r.runtime, next.Catalogue); err != nil {
			for _, h := range added {
				err = errors.Join(err, closeHandler(h))
			}
			return nil, fmt.Errorf("cannot change to the new catalogue: %w", err)
		}
	}
	// Nothing can fail from here on. The timeouts come first, so that what registers now has the new ones.
	if d.config.SetLog != nil && next.Log != r.current.Log {
		d.config.SetLog(next.Log)
	}
	d.guard.use(roles)
	d.fleetRules.use(next.Fleet.Serve.Allow)
	d.timeouts.set(next.ClientTimeouts)
	r.runtime.SetTimeouts(next.Timeouts, next.TypeTimeouts)
	for _, ptype := range removed {
		r.runtime.RemoveHandler(ptype)
		d.letGo(d.handlers.use(ptype, nil))
	}
	for ptype, handler := range added {
		r.runtime.AddHandler(ptype, handler)
		d.letGo(d.handlers.use(ptype, handler))
	}
	r.current = next
	r.runtime.Reconsider()
	return changed, nil
}

// handlerChanges returns new handlers for the types that have another kind of handler now, and the types that have none any more.
func (d *Daemon) handlerChanges(before, after Config) (added map[string]cache.PluginHandler, removed []string, err error) {
	added = map[string]cache.PluginHandler{}
	was, is := before.handlers(), after.handlers()
	for ptype, kind := range is {
		if was[ptype] == kind {
			continue
		}
		h, err := d.handlers.make(ptype, kind)
		if err != nil {
			for _, h := range added {
				err = errors.Join(err, closeHandler(h))
			}
			return nil, nil, err
		}
		added[ptype] = h
	}
	for ptype := range was {
		if _, has := is[ptype]; !has {
			removed = append(removed, ptype)
		}
	}
	return added, removed, nil
}

// letGo closes a handler that was taken out of the runtime. Its plugins are still being deregistered: it has to bear that.
func (d *Daemon) letGo(h cache.PluginHandler) {
	if err := closeHandler(h); err != nil {
		d.log.Error("cannot close a plugin handler", "error", err)
	}
}

// tell makes known what became of a reload.
func (d *Daemon) tell(changed []string, err error) {
	r := d.reloads
	if err != nil {
		message := strings.ReplaceAll(err.Error(), "\n", "; ")
		r.setFailure(patchbay.Condition{
			Name: configuration, Since: time.Now(),
			Message: "the configuration was not reloaded, and the one before is in force: " + message,
		})
		d.log.Error("configuration not reloaded", "error", message)
		r.runtime.Publish(reconciler.Event{Time: time.Now(), Kind: EventReloadFailed, Message: message})
		return
	}
	r.setFailure(patchbay.Condition{Name: configuration, OK: true})
	d.log.Info("configuration reloaded", "changed", changed)
	message := "the configuration was reloaded: nothing changed"
	if len(changed) > 0 {
		message = "the configuration was reloaded: " + strings.Join(changed, ", ")
	}
	r.runtime.Publish(reconciler.Event{Time: time.Now(), Kind: EventReloaded, Message: message})
}

func (r *reloads) setFailure(c patchbay.Condition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !c.OK && !r.failure.OK {
		c.Since = r.failure.Since
	}
	r.failure = c
}

func (r *reloads) condition() patchbay.Condition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

// observed is the runtime as the daemon shows it: with a condition of the daemon's own.
type observed struct {
	*patchbay.Runtime
	reloads  *reloads
	dispense *dispense // nil if there are no stable sockets
	state    *stateWatch
	fleet    *fleetMember
	files    *fileLimit
}

// readiness is the conditions without which no plugin can be registered.
func (o observed) readiness() []patchbay.Condition {
	return append(o.Runtime.Conditions(), o.state.get())
}

// Conditions are ordered by name.
func (o observed) Conditions() []patchbay.Condition {
	all := append([]patchbay.Condition{o.reloads.condition()}, o.readiness()...)
	if o.dispense != nil {
		all = append(all, o.dispense.condition())
	}
	all = append(all, o.fleet.conditions()...)
	all = append(all, o.files.condition())
	slices.SortFunc(all, func(a, b patchbay.Condition) int { return strings.Compare(a.Name, b.Name) })
	return all
}
