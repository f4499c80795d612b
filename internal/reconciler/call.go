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

// work makes the calls of a job, one after the other, until no call follows or another goroutine saves the instance and continues.
func (r *Reconciler) work(ctx context.Context, j *job, s *slot) {
	for j.effect != nil {
		e, _ := j.effect.(machine.Call)
		saves := e.Kind == machine.CallSave && r.persists
		if saves && r.saveElsewhere(ctx, j, s) {
			return
		}
		r.done(ctx, j, r.perform(ctx, j, &e, s), nil)
		if saves {
			r.endSave(ctx)
		}
	}
}

const (
	// maxSaves is the greatest number of instances in one transaction, which delays all other changes of their names.
	maxSaves = 64
	// From manySaves waiting instances on, a transaction waits up to gatherTime for more, because they usually come in bursts. It costs as
	// much as adding forty instances to another one.
	manySaves  = 8
	gatherTime = 10 * time.Millisecond
)

// saveElsewhere hands a job to the one goroutine that saves, which puts many instances into one transaction, so that the slot is free for
// other jobs. It returns false if the job can save by itself, because no other job saves or waits for a slot; the job then holds no slot,
// and calls endSave afterwards.
func (r *Reconciler) saveElsewhere(ctx context.Context, j *job, s *slot) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.saves == nil
	if first && len(r.queue)+len(r.retries)+len(r.saved) == 0 {
		r.saves = []*job{}
		r.freeSlot(s)
		return false
	}
	switch r.saves = append(r.saves, j); {
	case first:
		r.spawn(func() { r.saveTogether(ctx) })
	case len(r.saves) >= maxSaves:
		r.stopGathering()
	}
	return true
}

// endSave ends the save of a job by itself, and starts saving the jobs that came during it.
func (r *Reconciler) endSave(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.saves) == 0 {
		r.saves = nil
		return
	}
	r.spawn(func() { r.saveTogether(ctx) })
}

// saveTogether saves the waiting jobs until none is left. Each continues when it gets a slot.
func (r *Reconciler) saveTogether(ctx context.Context) {
	for jobs := r.nextSaves(ctx); len(jobs) > 0; jobs = r.nextSaves(ctx) {
		for i, result := range r.save(jobs) {
			r.done(ctx, jobs[i], result, nil)
		}
		r.requeueSaved(ctx, jobs)
	}
}

// nextSaves removes and returns the jobs of the next transaction; none ends the goroutine that saves.
func (r *Reconciler) nextSaves(ctx context.Context) (jobs []*job) {
	r.pace.Yield() // to the goroutines that are about to add jobs
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

// gather returns a context that is canceled when there are enough jobs for a transaction; nil if it should begin immediately.
func (r *Reconciler) gather(ctx context.Context) (wait context.Context, done func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.saves); n < r.manySaves || n >= maxSaves || r.free == r.slots {
		return nil, nil
	}
	wait, r.stopGathering = context.WithCancel(ctx)
	return wait, r.stopGathering
}

// requeueSaved queues the saved jobs that have another call to make.
func (r *Reconciler) requeueSaved(ctx context.Context, jobs []*job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, j := range jobs {
		if j.effect != nil {
			r.saved = append(r.saved, j)
		}
	}
	r.dispatch(ctx)
}

// perform makes the call e of a job, and returns its result.
func (r *Reconciler) perform(ctx context.Context, j *job, e *machine.Call, s *slot) machine.Returned {
	defer r.goOn(ctx, j, e, s)
	ctx, result := j.ctx, machine.Returned{Key: plugin.Name{Type: e.Instance.Type, Name: e.Instance.Name}}
	var err error
	h := r.handler(e.Handler)
	switch e.Kind {
	case machine.CallProbe:
		result.Failure = r.endpointAnswers(ctx, e)
	case machine.CallValidate:
		err = r.validate(j, e, h)
	case machine.CallAdmit:
		err = r.admit(j, e)
	case machine.CallRegister:
		result.Registration, err = r.register(j, e, h)
	case machine.CallSave:
		return r.save([]*job{j})[0]
	case machine.CallTell:
		err = r.notifyRegistered(ctx, e)
	case machine.CallKeep:
		result.Kept = r.keepsRegistration(j, e, h)
	case machine.CallDiscard:
		err = r.discard(e.Ref)
	case machine.CallDeRegister:
		r.logError(r.call(j, "DeRegisterPlugin", func() error {
			// gofail: var handlerDeRegister struct{}
			// return nil
			h.DeRegisterPlugin(e.Instance.Name)
			return nil
		}))
	case machine.CallGone:
		if g, ok := h.(cache.InstanceGoneHandler); ok {
			r.logError(r.call(j, "InstanceGone", func() error { g.InstanceGone(e.Instance.Name, e.Instance.Endpoint); return nil }))
		}
	case machine.CallRemove:
		err = r.cfg.Registry.Remove(e.Instance.Type, e.Instance.Name, e.Instance.ID)
	}
	if err != nil {
		result.Failure = classify(err)
	}
	return result
}

func (r *Reconciler) handler(number int) cache.PluginHandler {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.handlers[number]
}

// call calls a function of the host's program for a job. A panic of the function is an error; see goOn for its runtime.Goexit.
func (r *Reconciler) call(j *job, what string, do func() error) error {
	j.calls = what
	err := callback.Recover(do)
	j.calls = ""
	if failed, ok := errors.AsType[*callback.Error](err); ok {
		r.log.Error("handler panicked", "call", what, "panic", failed.Panic, "stack", failed.Stack)
		return fmt.Errorf("the handler panicked in %s: %v", what, failed.Panic)
	}
	return err
}

// outcome returns the error of a call that may have ended its goroutine, in which case err is meaningless.
func (j *job) outcome(err error) error {
	if j.calls != "" {
		return fmt.Errorf("the handler ended its goroutine in %s instead of returning", j.calls)
	}
	return err
}

// goOn continues a job in a new goroutine if the function that the job called ends this one. A goroutine for each call would cost more.
func (r *Reconciler) goOn(ctx context.Context, j *job, e *machine.Call, s *slot) {
	if j.calls == "" {
		return
	}
	r.log.Error("handler ended its goroutine", "call", j.calls)
	failure := classify(j.outcome(nil))
	result := machine.Returned{Key: plugin.Name{Type: e.Instance.Type, Name: e.Instance.Name}, Failure: failure}
	j.calls = ""
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spawn(func() {
		r.done(ctx, j, result, nil)
		r.runJobs(ctx, j, s)
	})
}

func (r *Reconciler) logError(err error) {
	if err != nil {
		r.log.Error("cannot undo a registration cleanly", "error", err)
	}
}

func (r *Reconciler) endpointAnswers(ctx context.Context, e *machine.Call) *machine.Failure {
	ctx, cancel := r.pace.WithTimeout(ctx, r.timeoutsOf(e.Instance.Type).Dial)
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

func (r *Reconciler) admit(j *job, e *machine.Call) (err error) {
	ctx, done := r.trace(j.ctx, "admit")
	defer func() { done(j.outcome(err)) }()
	return r.call(j, "Admit", func() error { return r.cfg.Admit(ctx, e.Instance) })
}

func (r *Reconciler) validate(j *job, e *machine.Call, h cache.PluginHandler) (err error) {
	_, done := r.trace(j.ctx, "validate")
	defer func() { done(j.outcome(err)) }()
	return r.call(j, "ValidatePlugin", func() error {
		// gofail: var handlerValidate string
		// return errors.New(handlerValidate)
		if v, ok := h.(cache.DeprecatedDirValidator); ok {
			return v.ValidatePluginInDir(e.Instance.Name, e.Instance.Endpoint, e.Instance.Versions, e.Deprecated)
		}
		return h.ValidatePlugin(e.Instance.Name, e.Instance.Endpoint, e.Instance.Versions)
	})
}

// register calls the handler's RegisterPluginContext, or its RegisterPlugin if it has no such method.
func (r *Reconciler) register(j *job, e *machine.Call, h cache.PluginHandler) (registration plugin.Registration, err error) {
	p := &e.Instance
	var clientTimeout *time.Duration
	if r.cfg.ClientTimeout != nil {
		err := r.call(j, "ClientTimeout", func() error {
			clientTimeout = r.cfg.ClientTimeout(p.Type, p.Name)
			return nil
		})
		if err != nil {
			return registration, err
		}
	}
	ctx, done := r.trace(j.ctx, "register")
	defer func() { done(j.outcome(err)) }()
	// gofail: var handlerRegister string
	// return registration, errors.New(handlerRegister)
	registrar, ok := h.(cache.ContextRegistrar)
	if !ok {
		return registration, r.call(j, "RegisterPlugin", func() error {
			return h.RegisterPlugin(p.Name, p.Endpoint, p.Versions, clientTimeout)
		})
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if timeout := r.timeoutsOf(p.Type).Handler; timeout > 0 {
		ctx, cancel = r.pace.WithTimeout(ctx, timeout)
		defer cancel()
	}
	d := &endpointDialer{judge: r.cfg.Trust, refused: cancel, instance: *p}
	err = r.call(j, "RegisterPluginContext", func() error {
		ctx := cache.WithEndpointDialer(ctx, d.dial)
		registration, err = registrar.RegisterPluginContext(ctx, p.Name, p.Endpoint, p.Versions, clientTimeout)
		return err
	})
	if refusal := d.refusal.Load(); err != nil && refusal != nil {
		return registration, refusal
	}
	if err == nil {
		if err = checkRoles(registration.Roles); err != nil {
			r.logError(r.call(j, "DeRegisterPlugin", func() error { h.DeRegisterPlugin(p.Name); return nil }))
		}
	}
	return registration, err
}

// checkRoles returns an error if a role is not a plugin type. Empty roles are allowed, and ignored.
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
	refused  func() // cancels the registration: another connection would be refused too
	refusal  atomic.Pointer[trust.Refusal]
}

func (d *endpointDialer) dial(ctx context.Context, path string) (net.Conn, error) {
	conn, err := peerauth.Dial(ctx, d.judge, &d.instance, path)
	if f := classify(err); f != nil && f.Kind == machine.Distrusted {
		refusal, _ := errors.AsType[*trust.Refusal](err)
		d.refusal.Store(refusal)
		d.refused()
	}
	return conn, err
}

// save stages the instances of jobs in the registry, with new IDs for those that have none. A result with both an ID and a failure is a
// staged instance that must be discarded.
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
		r.resourcesOf(j.ref).staged = stage.Staged
		results[i] = machine.Returned{Key: plugin.Name{Type: instances[i].Type, Name: instances[i].Name}, Failure: classify(stage.Err)}
		if stage.Err == nil || stage.Staged != nil {
			results[i].ID = instances[i].ID
		}
	}
	return results
}

func (r *Reconciler) discard(ref machine.Ref) error {
	r.mu.Lock()
	staged := r.resourcesOf(ref).staged
	r.mu.Unlock()
	if err := staged.Discard(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.resourcesOf(ref).staged = nil
	return nil
}

func (r *Reconciler) notifyRegistered(ctx context.Context, e *machine.Call) error {
	ctx, done := r.trace(ctx, "notify")
	err := ctx.Err() // the socket may have been removed while the job waited for a slot
	if err == nil {
		err = r.connOf(e.Ref).Notify(ctx, r.timeoutsOf(e.Instance.Type).Notify, true, "")
	}
	done(err)
	if err != nil {
		return fmt.Errorf("cannot notify the plugin that it is registered: %w", err)
	}
	return nil
}

// keepsRegistration reports whether the handler keeps a plugin registered that could not be notified.
func (r *Reconciler) keepsRegistration(j *job, e *machine.Call, h cache.PluginHandler) (kept bool) {
	keeper, ok := h.(cache.RegistrationKeeper)
	if !ok {
		return false
	}
	r.logError(r.call(j, "KeepRegistration", func() error {
		kept = keeper.KeepRegistration(e.Instance.Name, e.Failure.Err)
		return nil
	}))
	return kept
}
