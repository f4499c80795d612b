package host

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/launch/machine"
	"github.com/patchbay-dev/patchbay/internal/launch/supervise"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// maxPending bounds the checks of one plugin that are not resolved.
	maxPending = 1 << 16
	// maxKept bounds the final answers that are kept. The oldest goes first.
	maxKept = 1 << 16
	// maxPin bounds the length of each part of a pin.
	maxPin = 4 << 10

	defaultAdmissionTimeout = time.Minute
)

// AdmissionPlugin launches an admission plugin on demand, and asks it. It implements [plugin.AdmissionPlugin]. All methods are safe for
// concurrent use. A handle that has not been used costs a few hundred bytes, and no goroutine; it need not be closed.
//
// A check is refused if the plugin does not answer in time, or ends before it answers. Such refusals are not cached: a later check with the
// same pin asks the plugin again. This is also true for refusals that are not final (see Resolution in api/patchbay/plugin/v1). The newest
// 65,536 final answers are cached.
//
// The next check restarts a plugin that has ended, after a pause if the plugin ended within 10 s of its start: up to 100 ms at first,
// doubled each time up to 10 s. A plugin is killed if a check times out and no other check was answered for half of that time.
type AdmissionPlugin struct {
	host       *Host
	spec       Spec
	timeout    time.Duration // of a check
	executable string
	logger     *slog.Logger // nil for the logger in the host's PluginsContext

	aborted chan struct{} // closed by Close

	mu      sync.Mutex // guards the fields below; taken before Host.mu; not held while a method of unit is called
	closed  bool
	checks  map[plugin.Pin]*Promise // the promises in the three lists
	waiting promises                // not sent yet
	sent    promises
	kept    promises        // resolved
	unit    *supervise.Unit // created by the first check
	session *session        // nil if no process runs
	expiry  *time.Timer     // for the next deadline; nil if there is none
}

var _ plugin.AdmissionPlugin = (*AdmissionPlugin)(nil)

// NewAdmissionPlugin returns a handle to an admission plugin with this command line. The plugin is started by the first check.
// The context is used for logging from the plugin only, see [WithLogger].
func NewAdmissionPlugin(ctx context.Context, host *Host, args []string) *AdmissionPlugin {
	return NewAdmission(ctx, host, Spec{Args: args}, 0)
}

// NewAdmission is [NewAdmissionPlugin] with every option. The timeout is how long a check may take; [Host].AdmissionTimeout if it is zero.
// The Controller, PluginSocket, Survive and Adapter of the spec are ignored: an admission plugin does not serve, and ends with its host. If
// the spec is invalid, each check is refused with the reason.
func NewAdmission(ctx context.Context, host *Host, spec Spec, timeout time.Duration) *AdmissionPlugin {
	logger, _ := ctx.Value(loggerKey{}).(*slog.Logger)
	spec.Args = slices.Clone(spec.Args)
	spec.PluginSocket, spec.Survive, spec.Adapter = "", false, nil
	if timeout = cmp.Or(timeout, host.AdmissionTimeout); timeout <= 0 {
		timeout = defaultAdmissionTimeout
	}
	p := &AdmissionPlugin{
		host: host, spec: spec, timeout: timeout, logger: logger, aborted: make(chan struct{}), checks: map[plugin.Pin]*Promise{},
	}
	p.waiting, p.sent, p.kept = promises{list.New()}, promises{list.New()}, promises{list.New()}
	if len(spec.Args) > 0 {
		p.spec.Name = cmp.Or(spec.Name, filepath.Base(spec.Args[0]))
		p.executable = spec.Args[0]
		if found, err := exec.LookPath(spec.Args[0]); err == nil {
			p.executable = found
		}
	}
	return p
}

// NewAdmissionPlugin is the function of this name for this host. An empty command line is an error; before Initialize the error wraps
// [ErrNotInitialized], after Close [ErrClosed].
func (h *Host) NewAdmissionPlugin(cmdLine []string) (plugin.AdmissionPlugin, error) {
	if err := h.usable(); err != nil {
		return nil, fmt.Errorf("cannot create an admission plugin: %w", err)
	}
	if len(cmdLine) == 0 || cmdLine[0] == "" {
		return nil, errors.New("cannot create an admission plugin: its command line is empty")
	}
	return NewAdmissionPlugin(context.Background(), h, cmdLine), nil
}

// Executable returns the path of the plugin's program.
func (p *AdmissionPlugin) Executable() string { return p.executable }

// CheckAdmission asks the plugin whether the package with a pin may be deployed. It does not block. While a check is pending or its answer
// is cached, all calls with the same pin return the same promise. If 65,536 checks are pending, a new one is refused with [ErrQueueFull];
// after Close, with [ErrAborted].
func (p *AdmissionPlugin) CheckAdmission(pin plugin.Pin) plugin.Promise {
	p.mu.Lock()
	if known := p.checks[pin]; known != nil {
		p.mu.Unlock()
		return known
	}
	promise := &Promise{pin: pin}
	err := p.enqueue(promise)
	unit, runs := p.unit, p.session != nil
	p.mu.Unlock()
	switch {
	case err != nil:
		promise.resolve(refusal(pin, err))
	case !runs:
		unit.Tell(machine.Demand{})
	}
	return promise
}

// enqueue adds a promise to the waiting ones. The caller holds mu.
func (p *AdmissionPlugin) enqueue(promise *Promise) error {
	pin := promise.pin
	switch {
	case p.closed:
		return ErrAborted
	case len(pin.PackageName) > maxPin || len(pin.InstanceID) > maxPin:
		return status.Errorf(codes.InvalidArgument, "a part of its pin has more than %d bytes", maxPin)
	case !utf8.ValidString(pin.PackageName) || !utf8.ValidString(pin.InstanceID):
		return status.Error(codes.InvalidArgument, "its pin is not valid UTF-8")
	case p.waiting.Len()+p.sent.Len() == maxPending:
		return ErrQueueFull
	case p.session == nil && !p.host.use(p):
		return ErrAborted
	}
	if p.unit == nil {
		p.unit = p.newUnit()
	}
	promise.deadline = time.Now().Add(p.timeout)
	p.checks[pin] = promise
	p.waiting.push(promise)
	if p.session != nil {
		p.session.wakeUp()
	}
	p.arm()
	return nil
}

// arm sets the timer for the next deadline, unless it is set already. The caller holds mu.
func (p *AdmissionPlugin) arm() {
	var next *Promise
	for _, first := range []*Promise{p.sent.first(), p.waiting.first()} {
		if first != nil && (next == nil || first.deadline.Before(next.deadline)) {
			next = first
		}
	}
	if next != nil && p.expiry == nil {
		p.expiry = time.AfterFunc(time.Until(next.deadline), p.expire)
	}
}

// expire refuses checks whose deadlines have passed. If no check was answered for half of the timeout, the plugin hangs and is killed.
func (p *AdmissionPlugin) expire() {
	p.mu.Lock()
	now := time.Now()
	var hung supervise.Process
	err := ErrTimeout
	if s := p.session; s != nil && s.process != nil && s.process.mayBeCIPD && !s.greeted {
		err = fmt.Errorf("%w, and has not asked for checks; %s", err, needsCIPD)
	}
	for _, pending := range []promises{p.sent, p.waiting} {
		for first := pending.first(); first != nil && !first.deadline.After(now); first = pending.first() {
			if s := p.session; s != nil && s.process != nil && now.Sub(s.heard) >= p.timeout/2 {
				s.hangs, hung = true, s.process
			}
			p.fail(pending, first, err)
		}
	}
	p.expiry = nil
	p.arm()
	unit := p.unit
	p.mu.Unlock()
	if hung != nil {
		unit.Unfit(hung, ErrTimeout, true) // killed, because checks wait for the next process
	}
}

// ClearCache forgets all resolved promises.
func (p *AdmissionPlugin) ClearCache() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.kept.Len() > 0 {
		p.kept.Remove(p.kept.Front()) // one by one, so that a promise that is still used does not keep the others in memory
	}
	p.checks = map[plugin.Pin]*Promise{} // a new map, because maps do not shrink
	for _, pending := range []promises{p.waiting, p.sent} {
		for at := pending.Front(); at != nil; at = at.Next() {
			promise, _ := at.Value.(*Promise)
			p.checks[promise.pin] = promise
		}
	}
}

// Close refuses pending checks with [ErrAborted], stops the plugin, as [PluginProcess.Terminate] does, and waits until it has ended. When
// ctx is done, it kills the plugin. Close may be called again, to kill the plugin sooner.
func (p *AdmissionPlugin) Close(ctx context.Context) {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.aborted)
	}
	p.failAll(p.waiting, ErrAborted)
	p.failAll(p.sent, ErrAborted)
	if p.expiry != nil {
		p.expiry.Stop()
	}
	unit := p.unit
	p.mu.Unlock()
	if unit == nil {
		return
	}
	ended := make(chan struct{})
	unit.Remove(func(error) { close(ended) })
	select {
	case <-ended:
	case <-ctx.Done():
		unit.Kill()
		<-ended
	}
}

func (p *AdmissionPlugin) failAll(pending promises, err error) {
	for pending.Len() > 0 {
		p.fail(pending, pending.first(), err)
	}
}

// fail refuses a pending check. The refusal is not cached.
func (p *AdmissionPlugin) fail(pending promises, promise *Promise, err error) {
	pending.Remove(promise.in)
	delete(p.checks, promise.pin)
	if p.session != nil {
		delete(p.session.open, promise.id)
	}
	promise.resolve(refusal(promise.pin, err))
}

// resolve resolves a check that was sent with a final answer, and caches the answer.
func (p *AdmissionPlugin) resolve(promise *Promise, err error) {
	p.sent.Remove(promise.in)
	p.kept.push(promise)
	if p.kept.Len() > maxKept {
		oldest := p.kept.first()
		p.kept.Remove(oldest.in)
		delete(p.checks, oldest.pin)
	}
	promise.resolve(err)
}

func refusal(pin plugin.Pin, err error) error {
	return fmt.Errorf("package %s is not admitted: %w", pin, err)
}

// Promise is the result of an admission check, possibly still pending. It implements [plugin.Promise].
type Promise struct {
	pin plugin.Pin

	mu       sync.Mutex // guards the next three fields
	resolved bool
	err      error
	waiters  chan struct{} // created by the first Wait that blocks

	// The fields below are guarded by AdmissionPlugin.mu.
	id       uint64 // on the stream, if the check was sent
	deadline time.Time
	in       *list.Element // in the list that the promise is in
}

// Wait blocks until the check is resolved and returns nil if the package is admitted, and otherwise the reason, or the error of ctx if ctx
// is done before that. The errors of checks that have no answer wrap [ErrAborted], [ErrCrashed], [ErrTimeout], [ErrProtocol] or
// [ErrQueueFull]; a pin that is too long or not valid UTF-8 is refused with the gRPC status InvalidArgument, and any other refusal has the
// status that the plugin gave.
func (p *Promise) Wait(ctx context.Context) error {
	p.mu.Lock()
	if p.resolved {
		p.mu.Unlock()
		return p.err
	}
	if p.waiters == nil {
		p.waiters = make(chan struct{})
	}
	waiters := p.waiters
	p.mu.Unlock()
	select {
	case <-waiters:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *Promise) resolve(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resolved, p.err = true, err
	if p.waiters != nil {
		close(p.waiters)
		p.waiters = nil
	}
}

// promises is a list of promises, oldest first. A promise is in one list at most.
type promises struct{ *list.List }

func (l promises) push(p *Promise) { p.in = l.PushBack(p) }

// first returns the oldest promise; nil if there is none.
func (l promises) first() *Promise {
	if l.Len() == 0 {
		return nil
	}
	p, _ := l.Front().Value.(*Promise)
	return p
}

func (l promises) moveFirst(to promises) *Promise {
	p := l.first()
	l.Remove(p.in)
	to.push(p)
	return p
}
