package host

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/launch/machine"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
	"github.com/patchbay-dev/patchbay/internal/launch/supervise"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// admissionsVersion is the version of the protocol between the host and admission plugins.
	admissionsVersion = 1
	// maxBatch bounds the checks in one message.
	maxBatch = 256
	// maxRefusal bounds the message of a refusal.
	maxRefusal = 1 << 10
)

// session is one process of an admission plugin: the service that the process calls, and the checks that were sent to it.
type session struct {
	pluginv1.UnimplementedAdmissionsServer
	plugin *AdmissionPlugin
	url    string

	hello     chan struct{} // closed when the plugin has sent hello
	wake      chan struct{} // wakes send; capacity 1
	over      chan struct{} // closed when the stream has ended
	receiving sync.WaitGroup

	// The fields below are guarded by AdmissionPlugin.mu.
	process *admissionProcess // nil before the process is started
	taken   bool              // the plugin has called Admit
	greeted bool              // the plugin has sent hello
	idle    bool              // send waits for wake
	hangs   bool
	err     error     // the violation of the protocol that ended the session
	heard   time.Time // when the plugin last answered, or was started
	last    uint64    // the last ID of a check
	open    map[uint64]*Promise
}

func newSession(p *AdmissionPlugin) *session {
	return &session{
		plugin: p, url: p.host.Config().ServiceURL, heard: time.Now(), hello: make(chan struct{}),
		wake: make(chan struct{}, 1), over: make(chan struct{}), open: map[uint64]*Promise{},
	}
}

// wakeUp wakes send if it waits. The caller holds AdmissionPlugin.mu.
func (s *session) wakeUp() {
	if s.idle {
		s.idle = false
		s.wake <- struct{}{} // does not block: send empties the channel before it sets idle again
	}
}

// Admit serves the one stream of the plugin.
func (s *session) Admit(stream pluginv1.Admissions_AdmitServer) error {
	received := make(chan error, 1)
	if !s.begin(func() { received <- s.receive(stream) }) {
		return status.Error(codes.FailedPrecondition, "there is a stream of admissions already, or was")
	}
	defer close(s.over)
	return s.send(stream, received)
}

func (s *session) begin(receive func()) bool {
	s.plugin.mu.Lock()
	defer s.plugin.mu.Unlock()
	if s.taken || s.plugin.session != s {
		return false
	}
	s.taken = true
	s.receiving.Go(receive)
	return true
}

func (s *session) send(stream pluginv1.Admissions_AdmitServer, received <-chan error) error {
	for {
		if batch := s.next(); batch != nil {
			if err := stream.Send(batch); err != nil {
				return err
			}
			continue
		}
		select {
		case <-s.wake:
		case err := <-received:
			return err
		case <-s.plugin.aborted:
			return status.Error(codes.Aborted, ErrAborted.Error())
		}
	}
}

// next returns a message with the next waiting checks. If there are none, it sets idle and returns nil.
func (s *session) next() *pluginv1.AdmitResponse {
	p := s.plugin
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(p.waiting.Len(), maxBatch)
	if s.idle = p.session != s || !s.greeted || n == 0; s.idle {
		return nil
	}
	batch := &pluginv1.AdmitResponse{Admissions: make([]*pluginv1.Admission, n)}
	for i := range n {
		promise := p.waiting.moveFirst(p.sent)
		s.last++
		promise.id = s.last
		s.open[promise.id] = promise
		pin := &pluginv1.Pin{PackageName: promise.pin.PackageName, InstanceId: promise.pin.InstanceID}
		batch.Admissions[i] = &pluginv1.Admission{Id: promise.id, ServiceUrl: s.url, Pin: pin}
	}
	return batch
}

func (s *session) receive(stream pluginv1.Admissions_AdmitServer) error {
	for first := true; ; first = false {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.handle(request, first); err != nil {
			return status.Error(codes.FailedPrecondition, err.Error())
		}
	}
}

func (s *session) handle(request *pluginv1.AdmitRequest, first bool) error {
	p := s.plugin
	p.mu.Lock()
	defer p.mu.Unlock()
	hello := request.GetHello()
	switch {
	case p.session != s:
		return errEnded
	case first && hello.GetProtocolVersion() != admissionsVersion:
		s.err = fmt.Errorf("%w: it speaks version %d, the host version %d", ErrProtocol, hello.GetProtocolVersion(), admissionsVersion)
	case !first && hello != nil:
		s.err = fmt.Errorf("%w: it sent hello twice", ErrProtocol)
	}
	if s.err != nil {
		s.greeted = false // no more checks are sent, and finish refuses the waiting ones
		return s.err
	}
	if first {
		s.greeted, s.heard = true, time.Now()
		close(s.hello)
		s.wakeUp()
	}
	for _, r := range request.GetResolutions() {
		s.resolve(r)
	}
	return nil
}

func (s *session) resolve(r *pluginv1.Resolution) {
	promise := s.open[r.GetId()]
	if promise == nil {
		return
	}
	delete(s.open, promise.id)
	s.heard = time.Now()
	code := codes.Code(max(r.GetCode(), 0))
	if r.GetCode() < 0 || code > codes.Unauthenticated {
		code = codes.Unknown
	}
	if code == codes.OK {
		s.plugin.resolve(promise, nil)
		return
	}
	text := r.GetMessage()
	err := status.Error(code, strings.ToValidUTF8(text[:min(len(text), maxRefusal)], ""))
	switch code {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.Unavailable, codes.ResourceExhausted:
		s.plugin.fail(s.plugin.sent, promise, err)
	default:
		s.plugin.resolve(promise, refusal(promise.pin, err))
	}
}

func (p *AdmissionPlugin) newUnit() *supervise.Unit {
	s := supervised{p}
	u := supervise.New(s, supervise.Real{WaitGroup: &p.host.watching})
	u.Configure(s, machine.Description{Serves: true, Healthy: 10 * time.Second, Restart: plugin.RestartPolicy{
		Policy: machine.OnDemand, Backoff: plugin.Backoff{Min: 100 * time.Millisecond, Max: 10 * time.Second}, Limit: -1,
	}}, false, func(error) {})
	return u
}

// supervised implements [supervise.Owner] and [supervise.Program].
type supervised struct{ *AdmissionPlugin }

// Observe publishes an event.
func (p supervised) Observe(e plugin.Event) {
	if e.Kind == plugin.EventReady {
		e.Message = "it asks for admission checks"
	}
	e.Name, e.State = p.spec.Name, ""
	p.host.emit(Event{Event: e})
}

// use arranges that Close closes an admission plugin. It reports false if the host is closed.
func (h *Host) use(p *AdmissionPlugin) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	if h.admissions == nil {
		h.admissions = map[*AdmissionPlugin]struct{}{}
	}
	h.admissions[p] = struct{}{}
	return true
}

// Needed reports whether checks wait for the plugin. If none do, Host.Close does not close the plugin.
func (p supervised) Needed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waiting.Len() > 0 {
		return true
	}
	p.host.mu.Lock()
	defer p.host.mu.Unlock()
	delete(p.host.admissions, p.AdmissionPlugin)
	return false
}

// Launch starts a process with a new session.
func (p supervised) Launch(ctx context.Context, _ machine.Ref) (supervise.Process, error) {
	s := newSession(p.AdmissionPlugin)
	if p.logger != nil {
		ctx = WithLogger(ctx, p.logger)
	}
	p.mu.Lock()
	p.session = s
	p.mu.Unlock()
	spec := p.spec
	spec.Controller = &Controller{Admissions: s}
	proc, err := p.host.Launch(ctx, spec)
	if err != nil {
		p.finish(s, fmt.Errorf("%w: %w", ErrCrashed, err))
		return nil, err
	}
	admitting := &admissionProcess{proc, s}
	p.mu.Lock()
	s.process = admitting
	p.mu.Unlock()
	return admitting, nil
}

// admissionProcess implements [supervise.Process].
type admissionProcess struct {
	*PluginProcess
	session *session
}

// AwaitReady blocks until the plugin has sent hello, or ctx is done.
func (a *admissionProcess) AwaitReady(ctx context.Context, _ func(error)) error {
	return a.follow(ctx, a.session.hello)
}

// FollowHealth stops the plugin when its stream ends. It blocks until ctx is done.
func (a *admissionProcess) FollowHealth(ctx context.Context, _ func(machine.HealthFound)) {
	_ = a.follow(ctx, nil) // always the error of ctx
}

// follow blocks until hello, which may be nil, is closed or ctx is done. It stops the plugin if the stream ends before that.
func (a *admissionProcess) follow(ctx context.Context, hello <-chan struct{}) error {
	select {
	case <-hello:
		return nil
	case <-a.session.over:
		a.session.plugin.unit.Unfit(a, errStreamEnded, false)
		<-ctx.Done()
	case <-ctx.Done():
	}
	return ctx.Err()
}

var errStreamEnded = errors.New("it no longer asks for admission checks")

func (a *admissionProcess) About() machine.Process { return machine.Process{PID: a.PID()} }

func (a *admissionProcess) Wait(context.Context) error {
	select {
	case <-a.done:
	case <-a.left:
	}
	err := a.Err()
	a.session.plugin.finish(a.session, fmt.Errorf("%w: %w", ErrCrashed, err))
	a.session.receiving.Wait()
	if errors.Is(err, ErrTerminated) {
		return nil
	}
	return err
}

func (a *admissionProcess) Terminate(ctx context.Context) {
	if err := a.PluginProcess.Terminate(ctx); errors.Is(err, process.ErrTimeout) {
		a.abandon()
	}
}

// finish refuses the checks that were sent and not answered. Checks not yet sent stay queued for the next process, but are refused if this
// process never said hello. After a hang, sent checks are queued again too: the check that caused it has already timed out.
func (p *AdmissionPlugin) finish(s *session, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session = nil
	if s.hangs {
		for p.waiting.Len() > 0 {
			p.waiting.moveFirst(p.sent)
		}
		p.waiting, p.sent = p.sent, promises{list.New()}
		return
	}
	p.failAll(p.sent, cmp.Or(s.err, err))
	if !s.greeted {
		p.failAll(p.waiting, cmp.Or(s.err, err))
	}
}
