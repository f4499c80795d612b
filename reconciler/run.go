package reconciler

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/judged"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/trust"
)

// lane returns the lane for a type and name. mu is held.
func (r *Reconciler) lane(key laneKey) *lane {
	l := r.lanes[key]
	if l == nil {
		l = &lane{key: key}
		r.lanes[key] = l
	}
	return l
}

// kick runs a lane that rests if its present state calls for something. mu is held.
func (r *Reconciler) kick(ctx context.Context, l *lane) {
	if l.running || r.stopped {
		return
	}
	if act, _ := l.next(r.handlers[l.key.ptype]); act == nothing {
		r.tidy(l)
		return
	}
	l.running = true
	r.spawn(func() { r.run(ctx, l) })
}

// tidy forgets a lane that is empty. mu is held.
func (r *Reconciler) tidy(l *lane) {
	if len(l.members) == 0 && l.held == nil && r.lanes[l.key] == l {
		delete(r.lanes, l.key)
	}
}

// run does what the lane's present state calls for until it calls for nothing. The caller has set l.running.
func (r *Reconciler) run(ctx context.Context, l *lane) {
	for {
		r.mu.Lock()
		h := r.handlers[l.key.ptype]
		act, in := l.next(h)
		if act == nothing || ctx.Err() != nil {
			l.running = false
			r.tidy(l)
			r.mu.Unlock()
			return
		}
		switch act {
		case nothing:
		case drop:
			r.drop(ctx, l, in) // unlocks
		case deregister:
			r.deregister(ctx, l) // unlocks
		case release:
			in.rest()
			in.unclaimed = true
			if in.lastErr = nil; r.cfg.IgnoreUnhandled {
				in.set(StateIgnored)
			} else {
				in.lastErr = unclaimed(in)
				in.set(StateRefused)
			}
			r.mu.Unlock()
			r.forget(ctx, in, "no handler is registered for its type")
		case register:
			conn := in.takeConn()
			in.walking = true
			r.mu.Unlock()
			r.register(ctx, l, in, conn, h)
			r.mu.Lock()
			in.walking = false
			r.mu.Unlock()
		case refuse:
			in.unclaimed = true
			if conn := in.takeConn(); r.cfg.IgnoreUnhandled {
				r.ignore(in, conn)
			} else {
				r.reject(ctx, in, conn, unclaimed(in))
			}
			r.mu.Unlock()
		case standDown:
			r.standDown(ctx, l, in) // unlocks
		case ask:
			r.ask(ctx, in)
			r.mu.Unlock()
		}
	}
}

// unclaimed is why an instance without a handler is refused.
func unclaimed(in *instance) error {
	return fmt.Errorf("no handler registered for plugin type: %s at socket %s", in.announced.Type, in.info.SocketPath)
}

// drop lets an instance that is gone leave the lane. It unlocks mu.
func (r *Reconciler) drop(ctx context.Context, l *lane, in *instance) {
	r.leave(ctx, l, in)
	r.unrecord(ctx, in)
	conn := in.takeConn()
	h := l.heldBy
	tell := in.handed && h != nil && !l.handedUnder(in.given, in)
	endpoint := in.given // its socket may have moved since
	r.mu.Unlock()
	if conn != nil {
		r.closeConn(conn)
	}
	if tell {
		r.callGone(l, h, endpoint)
	}
}

// callGone calls the handler's InstanceGone, if it has that.
func (r *Reconciler) callGone(l *lane, h *handler, endpoint string) {
	if g, ok := h.PluginHandler.(cache.InstanceGoneHandler); ok {
		r.logError(r.call("InstanceGone", func() error { g.InstanceGone(l.key.name, endpoint); return nil }))
	}
}

// deregister ends the registration of the held instance. It unlocks mu.
func (r *Reconciler) deregister(ctx context.Context, l *lane) {
	in, h := l.held, l.heldBy
	in.set(StateDeregistering)
	r.mu.Unlock()
	r.callDeRegister(l, h)
	r.mu.Lock()
	l.letGo()
	if in.gone {
		r.leave(ctx, l, in)
		r.unrecord(ctx, in)
		conn := in.takeConn()
		r.mu.Unlock()
		if conn != nil {
			r.closeConn(conn)
		}
		return
	}
	// Its handler was changed: it registers anew if there is another one.
	r.supersede(in)
	r.mu.Unlock()
}

// supersede has an instance rest that its handler had. mu is held.
func (r *Reconciler) supersede(in *instance) {
	in.set(StateSuperseded)
	r.hideMoved(in)
}

// callDeRegister calls the handler's DeRegisterPlugin.
func (r *Reconciler) callDeRegister(l *lane, h *handler) {
	r.logError(r.call("DeRegisterPlugin", func() error {
		// gofail: var handlerDeRegister struct{}
		// return nil
		h.DeRegisterPlugin(l.key.name)
		return nil
	}))
}

// standDown lets an instance that has answered rest behind the newer one that is registered. It unlocks mu.
func (r *Reconciler) standDown(ctx context.Context, l *lane, in *instance) {
	conn := in.takeConn()
	in.attempts, in.lastErr = 0, nil
	in.set(StateSuperseded)
	r.end(in, ResultSuperseded, nil)
	r.observe(EventSuperseded, in, "instance "+l.held.id+" is newer and current")
	r.watchRegistration(in, conn)
	r.watchEndpoint(ctx, in)
	r.rests(in)
	r.mu.Unlock()
}

// register walks an instance through its handler, the registry and the plugin itself: validated, admitted, registered, saved, told,
// announced (docs/adr/0004).
func (r *Reconciler) register(ctx context.Context, l *lane, in *instance, conn Conn, h *handler) {
	r.mu.Lock()
	endpoint, versions, deprecated := in.endpoint(), in.announced.Versions, in.info.FoundInDeprecatedDir
	ctx = in.traced(ctx)
	in.progress(StateValidating)
	r.mu.Unlock()
	name := l.key.name
	if err := r.endpointAnswers(ctx, l, in, endpoint); err != nil {
		r.turnedDown(ctx, in, conn, err)
		return
	}

	_, done := r.step(ctx, "validate")
	err := r.call("ValidatePlugin", func() error {
		// gofail: var handlerValidate string
		// return errors.New(handlerValidate)
		if v, ok := h.PluginHandler.(cache.DeprecatedDirValidator); ok {
			return v.ValidatePluginInDir(name, endpoint, versions, deprecated)
		}
		return h.ValidatePlugin(name, endpoint, versions)
	})
	done(err)
	if err != nil {
		err = fmt.Errorf("plugin validation failed: %w", err)
	} else {
		err = r.admit(ctx, in, conn, endpoint)
	}
	if err != nil {
		r.withdraw(ctx, in, err)
		if l.held == in && r.stays(ctx, in) {
			// It was to be registered again at its new path; at the old one it cannot stay.
			r.callDeRegister(l, h)
			r.mu.Lock()
			l.letGo()
			r.mu.Unlock()
		}
		r.turnedDown(ctx, in, conn, err)
		return
	}
	if !r.proceed(ctx, in, StateRegistering, nil) {
		r.closeConn(conn)
		return
	}
	kind := EventRegistered
	if l.held == in {
		kind = EventUpdated
	}
	registration, err := r.callRegister(ctx, in, h, endpoint)
	previous, left := r.handedOver(l, in, h, endpoint, registration, err)
	if left != "" {
		r.callGone(l, h, left)
	}
	if err != nil {
		r.turnedDown(ctx, in, conn, fmt.Errorf("plugin registration failed: %w", err))
		return
	}
	staged, err := r.save(ctx, in, conn, endpoint)
	if err != nil {
		r.closeConn(conn)
		r.takeBack(ctx, l, in, h, err)
		return
	}
	untold := r.tell(ctx, in, conn)
	if untold == nil || r.keep(h, name, untold) {
		err = r.announce(ctx, in, conn, endpoint, staged, kind, previous, untold)
	} else {
		err = untold
	}
	if err != nil {
		r.closeConn(conn)
		r.discard(ctx, in, staged)
		r.takeBack(ctx, l, in, h, err)
	}
}

// stays says that an instance has not gone, and that the reconciler goes on.
func (r *Reconciler) stays(ctx context.Context, in *instance) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !in.gone && ctx.Err() == nil
}

// admit asks whether the instance may be registered.
func (r *Reconciler) admit(ctx context.Context, in *instance, conn Conn, endpoint string) error {
	if r.cfg.Admit == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !r.proceed(ctx, in, StateAdmitting, cancel) {
		return errGone
	}
	r.mu.Lock()
	plugin := in.record(endpoint, conn.Peer())
	r.mu.Unlock()
	ctx, done := r.step(ctx, "admit")
	err := r.call("Admit", func() error { return r.cfg.Admit(ctx, plugin) })
	done(err)
	return err
}

// callRegister calls the handler's RegisterPlugin, or RegisterPluginContext if it has that.
func (r *Reconciler) callRegister(
	ctx context.Context, in *instance, h *handler, endpoint string,
) (registration cache.Registration, err error) {
	ptype, name, versions := in.announced.Type, in.announced.Name, in.announced.Versions
	var clientTimeout *time.Duration
	if r.cfg.ClientTimeout != nil {
		clientTimeout = r.cfg.ClientTimeout(ptype, name)
	}
	ctx, done := r.step(ctx, "register")
	defer func() { done(err) }()
	// gofail: var handlerRegister string
	// return registration, errors.New(handlerRegister)
	registrar, ok := h.PluginHandler.(cache.ContextRegistrar)
	if !ok {
		return registration, r.call("RegisterPlugin", func() error { return h.RegisterPlugin(name, endpoint, versions, clientTimeout) })
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if timeout := r.timeouts(ptype).Handler; timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	if !r.proceed(ctx, in, StateRegistering, cancel) {
		cancel()
	}
	d := r.endpointDialer(in, cancel)
	err = r.call("RegisterPluginContext", func() error {
		registration, err = registrar.RegisterPluginContext(cache.WithEndpointDialer(ctx, d.dial), name, endpoint, versions, clientTimeout)
		return err
	})
	if refusal := d.refusal.Load(); err != nil && refusal != nil {
		return registration, refusal
	}
	return registration, err
}

// endpointDialer connects a handler to the endpoint of a plugin.
type endpointDialer struct {
	judge   *trust.Judge
	plugin  judged.Plugin
	refused func() // ends the registration: there is no use in waiting for another connection
	refusal atomic.Pointer[trust.Refusal]
}

func (r *Reconciler) endpointDialer(in *instance, refused func()) *endpointDialer {
	r.mu.Lock()
	defer r.mu.Unlock()
	plugin := judged.Plugin{Type: in.announced.Type, Account: in.account, Socket: sock.ID(in.info.Socket)}
	return &endpointDialer{judge: r.cfg.Trust, plugin: plugin, refused: refused}
}

func (d *endpointDialer) dial(ctx context.Context, path string) (net.Conn, error) {
	conn, err := judged.Dial(ctx, d.judge, d.plugin, path)
	if refusal, ok := errors.AsType[*trust.Refusal](err); ok {
		d.refusal.Store(refusal)
		d.refused()
	}
	return conn, err
}

// keep asks the handler whether a plugin that could not be told stays registered.
func (r *Reconciler) keep(h *handler, name string, untold error) (kept bool) {
	keeper, ok := h.PluginHandler.(cache.RegistrationKeeper)
	if !ok || errors.Is(untold, errGone) {
		return false
	}
	r.logError(r.call("KeepRegistration", func() error {
		kept = keeper.KeepRegistration(name, untold)
		return nil
	}))
	return kept
}

// proceed goes on to the next state of a walk unless the instance went meanwhile.
func (r *Reconciler) proceed(ctx context.Context, in *instance, state State, cancel context.CancelFunc) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if in.gone || ctx.Err() != nil {
		return false
	}
	in.cancel = cancel
	in.progress(state)
	return true
}

// handedOver records what RegisterPlugin did: on success the handler has the instance, on failure it has none. It returns the
// instance that the handler had before and, if this one had another endpoint there which no other has, that one.
func (r *Reconciler) handedOver(
	l *lane, in *instance, h *handler, endpoint string, registration cache.Registration, err error,
) (previous *instance, left string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if previous = l.held; previous == in {
		previous = nil
	}
	if previous != nil && !previous.gone {
		r.supersede(previous)
	}
	if err != nil {
		l.letGo()
		return previous, ""
	}
	if in.handed && in.given != endpoint && !l.handedUnder(in.given, in) {
		left = in.given
	}
	l.held, l.heldBy = in, h
	in.handed, in.given = true, endpoint
	in.registration = registration
	return previous, left
}

// save stages the instance in the registry. The error is errGone if the instance went meanwhile.
func (r *Reconciler) save(ctx context.Context, in *instance, conn Conn, endpoint string) (Staged, error) {
	r.mu.Lock()
	if in.gone || ctx.Err() != nil {
		r.mu.Unlock()
		return nil, errGone
	}
	if in.id == "" {
		in.id = newInstanceID()
	}
	in.peer = conn.Peer()
	if in.registeredAt.IsZero() {
		in.registeredAt = time.Now()
	}
	record := in.record(endpoint, in.peer)
	r.mu.Unlock()
	_, done := r.step(ctx, "save")
	staged, err := r.cfg.Registry.Stage(record)
	done(err)
	if err != nil {
		return nil, fmt.Errorf("cannot save the registration: %w", err)
	}
	return staged, nil
}

// tell tells the plugin that it is registered.
func (r *Reconciler) tell(ctx context.Context, in *instance, conn Conn) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeouts(in.announced.Type).Notify)
	defer cancel()
	if !r.proceed(ctx, in, StateNotifying, cancel) {
		return errGone
	}
	ctx, done := r.step(ctx, "notify")
	err := conn.Notify(ctx, true, "")
	done(err)
	if err != nil {
		return fmt.Errorf("cannot tell the plugin that it is registered: %w", err)
	}
	return nil
}

// errGone says that an instance went while it was walked.
var errGone = errors.New("the plugin's socket went during registration")

// announce makes a registration visible that was saved and told, or is kept though it could not be told: then the plugin is told again
// later. It takes the connection over, unless the error is errGone: the instance went meanwhile.
func (r *Reconciler) announce(
	ctx context.Context, in *instance, conn Conn, endpoint string, staged Staged, kind EventKind, previous *instance, untold error,
) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	in.cancel = nil
	if in.gone || ctx.Err() != nil {
		return errGone
	}
	staged.Publish()
	in.recorded, in.hidden, in.listed = true, false, endpoint
	attempts := in.attempts
	in.attempts, in.lastErr, in.toldText = 0, nil, ""
	in.set(StateRegistered)
	r.end(in, ResultRegistered, nil)
	r.settled(in)
	r.watchRegistration(in, conn)
	r.watchEndpoint(ctx, in)
	r.observe(kind, in, "registered with its handler")
	if previous != nil && !previous.gone {
		r.observe(EventSuperseded, previous, "instance "+in.id+" is current now")
	}
	if untold != nil {
		in.attempts = attempts + 1
		in.lastErr = untold
		r.retryLater(in)
	}
	return nil
}

// discard takes a stage back.
func (r *Reconciler) discard(ctx context.Context, in *instance, staged Staged) {
	if err := staged.Discard(); err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.untilDone(ctx, "take back a registration", in, staged.Discard)
	}
}

// takeBack undoes a registration that could not be saved or told. The plugin is not told off: it did nothing wrong.
func (r *Reconciler) takeBack(ctx context.Context, l *lane, in *instance, h *handler, err error) {
	r.mu.Lock()
	in.cancel = nil
	r.mu.Unlock()
	if !r.stays(ctx, in) {
		// The lane deregisters what is gone, and nothing at the end of the reconciler.
		return
	}
	r.callDeRegister(l, h)
	r.mu.Lock()
	defer r.mu.Unlock()
	l.letGo()
	if !in.gone {
		r.hide(in, err)
		r.failed(in, err)
	}
}
