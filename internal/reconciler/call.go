package reconciler

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/callback"
	"github.com/patchbay-dev/patchbay/internal/discover/machine"
	"github.com/patchbay-dev/patchbay/internal/peerauth"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

// work makes calls for the machine, one after the other, until the job is about none any more, or waits for the disk elsewhere.
func (r *Reconciler) work(ctx context.Context, j *job, s *slot) {
	for j.effect != nil {
		e, _ := j.effect.(machine.Call)
		waits := e.Kind == machine.CallSave && r.keeps
		if waits && r.waitForDisk(ctx, j, s) {
			return
		}
		r.done(ctx, j, r.perform(j, &e), nil)
		if waits {
			r.leaveDisk(ctx)
		}
	}
}

const (
	// maxSaves is how many instances are saved together at most: as long as they are, no other change of their names can begin.
	maxSaves = 64
	// manySaves are a sign that more are to come: the next transaction waits for them, but no longer than gatherTime. It costs as much as
	// forty plugins that share it.
	manySaves  = 8
	gatherTime = 10 * time.Millisecond
)

// waitForDisk has a job that saves hold no slot meanwhile: the more plugins are saved at once, the less each costs. A job saves by itself
// if nobody else saves and nobody waits for its slot. Otherwise those that wait go on in this goroutine, and one goroutine saves all jobs
// that come to that, so the disk has at most one caller.
func (r *Reconciler) waitForDisk(ctx context.Context, j *job, s *slot) (elsewhere bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	nobody := r.saves == nil
	if nobody && len(r.queue)+len(r.again)+len(r.saved) == 0 {
		r.saves = []*job{}
		r.leave(s)
		return false
	}
	switch r.saves = append(r.saves, j); {
	case nobody:
		r.spawn(func() { r.saveTogether(ctx) })
	case len(r.saves) >= maxSaves:
		r.gathered()
	}
	return true
}

// leaveDisk ends the save of a job by itself: those that came meanwhile are saved together.
func (r *Reconciler) leaveDisk(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.saves) == 0 {
		r.saves = nil
		return
	}
	r.spawn(func() { r.saveTogether(ctx) })
}

// saveTogether saves what waits for that, until nothing does. A job that is saved goes on when it has a slot again.
func (r *Reconciler) saveTogether(ctx context.Context) {
	for jobs := r.nextSaves(ctx); len(jobs) > 0; jobs = r.nextSaves(ctx) {
		for i, result := range r.save(jobs) {
			r.done(ctx, jobs[i], result, nil)
		}
		r.goOnSaved(ctx, jobs)
	}
}

// nextSaves takes the jobs that are to be saved next. Without any, the next one that comes needs another goroutine.
func (r *Reconciler) nextSaves(ctx context.Context) (jobs []*job) {
	r.pace.Yield() // those that are about to come should not have to wait for the next transaction
	if wait, done := r.gather(ctx); wait != nil {
		_ = r.pace.Sleep(wait, gatherTime)
		done()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.saves) == 0 {
		r.saves = nil
		return nil
	}
	n := min(len(r.saves), maxSaves)
	jobs, r.saves = r.saves[:n:n], r.saves[n:]
	return jobs
}

// gather returns what ends when enough wait for being saved; nil if that is so already, or nothing says that more come.
func (r *Reconciler) gather(ctx context.Context) (wait context.Context, done func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.saves); n < r.manySaves || n >= maxSaves || r.free == r.slots {
		return nil, nil
	}
	wait, r.gathered = context.WithCancel(ctx)
	return wait, r.gathered
}

// goOnSaved has jobs that are saved go on where there is more to do.
func (r *Reconciler) goOnSaved(ctx context.Context, jobs []*job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range jobs {
		if j.effect != nil {
			r.saved = append(r.saved, j)
		}
	}
	r.dispatch(ctx)
}

func (r *Reconciler) perform(j *job, e *machine.Call) machine.Returned {
	ctx, result := j.ctx, machine.Returned{Key: plugin.Name{Type: e.Instance.Type, Name: e.Instance.Name}}
	var err error
	h := r.handler(e.Handler)
	switch e.Kind {
	case machine.CallProbe:
		result.Failure = r.endpointAnswers(ctx, e)
	case machine.CallValidate:
		err = r.validate(ctx, e, h)
	case machine.CallAdmit:
		ctx, done := r.trace(ctx, "admit")
		err = r.call("Admit", func() error { return r.cfg.Admit(ctx, e.Instance) })
		done(err)
	case machine.CallRegister:
		result.Registration, err = r.register(ctx, e, h)
	case machine.CallSave:
		return r.save([]*job{j})[0]
	case machine.CallTell:
		err = r.tell(ctx, e)
	case machine.CallKeep:
		result.Kept = r.keep(e, h)
	case machine.CallDiscard:
		err = r.discard(e.Ref)
	case machine.CallDeRegister:
		r.logError(r.call("DeRegisterPlugin", func() error {
			// gofail: var handlerDeRegister struct{}
			// return nil
			h.DeRegisterPlugin(e.Instance.Name)
			return nil
		}))
	case machine.CallGone:
		if g, ok := h.(cache.InstanceGoneHandler); ok {
			r.logError(r.call("InstanceGone", func() error { g.InstanceGone(e.Instance.Name, e.Instance.Endpoint); return nil }))
		}
	case machine.CallRemove:
		err = r.cfg.Registry.Remove(e.Instance.Type, e.Instance.Name, e.Instance.ID)
	}
	if err != nil {
		result.Failure = judge(err)
	}
	return result
}

func (r *Reconciler) handler(number int) cache.PluginHandler {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.handlers[number]
}

// call runs one call of a handler, which must return: its panic and its runtime.Goexit are errors.
func (r *Reconciler) call(what string, do func() error) error {
	err := r.pace.Call(do)
	switch failed, ok := errors.AsType[*callback.Error](err); {
	case !ok:
		return err
	case failed.Panic == nil:
		r.log.Error("handler ended its goroutine", "call", what)
		return fmt.Errorf("the handler ended its goroutine in %s instead of returning", what)
	default:
		r.log.Error("handler panicked", "call", what, "panic", failed.Panic, "stack", failed.Stack)
		return fmt.Errorf("the handler panicked in %s: %v", what, failed.Panic)
	}
}

func (r *Reconciler) logError(err error) {
	if err != nil {
		r.log.Error("cannot undo a registration cleanly", "error", err)
	}
}

func (r *Reconciler) endpointAnswers(ctx context.Context, e *machine.Call) *machine.Failure {
	ctx, cancel := r.pace.WithTimeout(ctx, r.timeouts(e.Instance.Type).Dial)
	defer cancel()
	stop, err := r.cfg.Transport.Probe(ctx, e.Instance.Endpoint, plugin.SocketID{}, func() {})
	if stop != nil {
		stop()
	}
	f := r.failure(err)
	if f != nil {
		f.Err = connectError(e.Instance.Endpoint, err)
	}
	return f
}

func (r *Reconciler) validate(ctx context.Context, e *machine.Call, h cache.PluginHandler) error {
	_, done := r.trace(ctx, "validate")
	err := r.call("ValidatePlugin", func() error {
		// gofail: var handlerValidate string
		// return errors.New(handlerValidate)
		if v, ok := h.(cache.DeprecatedDirValidator); ok {
			return v.ValidatePluginInDir(e.Instance.Name, e.Instance.Endpoint, e.Instance.Versions, e.Deprecated)
		}
		return h.ValidatePlugin(e.Instance.Name, e.Instance.Endpoint, e.Instance.Versions)
	})
	done(err)
	return err
}

// register calls the handler's RegisterPlugin, or RegisterPluginContext if it has that.
func (r *Reconciler) register(ctx context.Context, e *machine.Call, h cache.PluginHandler) (registration plugin.Registration, err error) {
	p := &e.Instance
	var clientTimeout *time.Duration
	if r.cfg.ClientTimeout != nil {
		err := r.call("ClientTimeout", func() error {
			clientTimeout = r.cfg.ClientTimeout(p.Type, p.Name)
			return nil
		})
		if err != nil {
			return registration, err
		}
	}
	ctx, done := r.trace(ctx, "register")
	defer func() { done(err) }()
	// gofail: var handlerRegister string
	// return registration, errors.New(handlerRegister)
	registrar, ok := h.(cache.ContextRegistrar)
	if !ok {
		return registration, r.call("RegisterPlugin", func() error {
			return h.RegisterPlugin(p.Name, p.Endpoint, p.Versions, clientTimeout)
		})
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if timeout := r.timeouts(p.Type).Handler; timeout > 0 {
		ctx, cancel = r.pace.WithTimeout(ctx, timeout)
		defer cancel()
	}
	d := &endpointDialer{judge: r.cfg.Trust, refused: cancel, instance: *p}
	err = r.call("RegisterPluginContext", func() error {
		ctx := cache.WithEndpointDialer(ctx, d.dial)
		registration, err = registrar.RegisterPluginContext(ctx, p.Name, p.Endpoint, p.Versions, clientTimeout)
		return err
	})
	if refusal := d.refusal.Load(); err != nil && refusal != nil {
		return registration, refusal
	}
	if err == nil {
		if err = checkRoles(registration.Roles); err != nil {
			r.logError(r.call("DeRegisterPlugin", func() error { h.DeRegisterPlugin(p.Name); return nil }))
		}
	}
	return registration, err
}

// checkRoles returns an error if a handler has named a role that cannot be the type of a plugin. An empty role is none.
func checkRoles(roles []string) error {
	for _, role := range roles {
		if role != "" && !untrusted.IsType(role) {
			return fmt.Errorf("its handler gave it the role %q: a role must have printable characters and no slash", role)
		}
	}
	return nil
}

// endpointDialer connects a handler to the endpoint of a plugin.
type endpointDialer struct {
	judge    *trustjudge.Judge
	instance plugin.Instance
	refused  func() // ends the registration: there is no use in waiting for another connection
	refusal  atomic.Pointer[trust.Refusal]
}

func (d *endpointDialer) dial(ctx context.Context, path string) (net.Conn, error) {
	conn, err := peerauth.Dial(ctx, d.judge, &d.instance, path)
	if f := judge(err); f != nil && f.Kind == machine.Distrusted {
		refusal, _ := errors.AsType[*trust.Refusal](err)
		d.refusal.Store(refusal)
		d.refused()
	}
	return conn, err
}

// save stages instances in the registry, each under a new identifier if it has none. With an identifier and a failure there is something to
// be taken back.
func (r *Reconciler) save(jobs []*job) []machine.Returned {
	instances, traced := make([]plugin.Instance, len(jobs)), make([]func(error), len(jobs))
	for i, j := range jobs {
		e, _ := j.effect.(machine.Call)
		if instances[i] = e.Instance; instances[i].ID == "" {
			instances[i].ID = r.pace.ID()
		}
		_, traced[i] = r.trace(j.ctx, "save")
	}
	stages := r.cfg.Registry.Stage(instances)
	results := make([]machine.Returned, len(jobs))
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, j := range jobs {
		stage := stages[i]
		traced[i](stage.Err)
		r.of(j.ref).staged = stage.Staged
		results[i] = machine.Returned{Key: plugin.Name{Type: instances[i].Type, Name: instances[i].Name}, Failure: judge(stage.Err)}
		if stage.Err == nil || stage.Staged != nil {
			results[i].ID = instances[i].ID
		}
	}
	return results
}

func (r *Reconciler) discard(ref machine.Ref) error {
	r.mu.Lock()
	staged := r.of(ref).staged
	r.mu.Unlock()
	if err := staged.Discard(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(ref).staged = nil
	return nil
}

func (r *Reconciler) tell(ctx context.Context, e *machine.Call) error {
	ctx, done := r.trace(ctx, "notify")
	err := ctx.Err() // it may have gone while it waited for a slot
	if err == nil {
		err = r.connOf(e.Ref).Notify(ctx, r.timeouts(e.Instance.Type).Notify, true, "")
	}
	done(err)
	if err != nil {
		return fmt.Errorf("cannot notify the plugin that it is registered: %w", err)
	}
	return nil
}

// keep asks the handler whether a plugin that could not be told stays registered.
func (r *Reconciler) keep(e *machine.Call, h cache.PluginHandler) (kept bool) {
	keeper, ok := h.(cache.RegistrationKeeper)
	if !ok {
		return false
	}
	r.logError(r.call("KeepRegistration", func() error {
		kept = keeper.KeepRegistration(e.Instance.Name, e.Failure.Err)
		return nil
	}))
	return kept
}
