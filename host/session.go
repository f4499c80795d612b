package host

import (
	"cmp"
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
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/launch/process"
)

const (
	// admissionsVersion is the version of the protocol between the host and admission plugins.
	admissionsVersion = 1
	// maxBatch bounds the checks in one message.
	maxBatch = 256
	// maxRefusal bounds the text with which a plugin refuses.
	maxRefusal = 1 << 10
)

// session is one run of an admission plugin: the service that its process may call, and the checks that it was sent.
type session struct {
	pluginv1.UnimplementedAdmissionsServer
	plugin *AdmissionPlugin
	url    string
	start  time.Time

	wake      chan struct{} // tells send that there may be something to do; capacity 1
	over      chan struct{} // closed when the stream has ended
	receiving sync.WaitGroup

	// What follows is guarded by the lock of the admission plugin.
	taken   bool // there is a stream, or was
	greeted bool // the plugin has said hello
	idle    bool // send waits
	hangs   bool
	err     error     // why the plugin is not fit to be asked
	heard   time.Time // when the plugin last answered, or started
	last    uint64    // id
	open    map[uint64]*Promise
}

func newSession(p *AdmissionPlugin) *session {
	now := time.Now()
	return &session{
		plugin: p, url: p.host.Config().ServiceURL, start: now, heard: now,
		wake: make(chan struct{}, 1), over: make(chan struct{}), open: map[uint64]*Promise{},
	}
}

// wakeUp is called with the lock.
func (s *session) wakeUp() {
	if s.idle {
		s.idle = false
		s.wake <- struct{}{} // has room: send empties it before it is idle again
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
	b := newBatch(s.url)
	for {
		if s.fill(b) == 0 {
			select {
			case <-s.wake:
			case err := <-received:
				return err
			case <-s.plugin.aborted:
				return status.Error(codes.Aborted, ErrAborted.Error())
			}
			continue
		}
		if err := stream.Send(&b.message); err != nil {
			return err
		}
	}
}

// fill puts checks that wait into the batch, and returns how many. None: send is idle.
func (s *session) fill(b *batch) int {
	p := s.plugin
	p.mu.Lock()
	defer p.mu.Unlock()
	b.reset()
	if p.session != s || !s.greeted {
		s.idle = true
		return 0
	}
	n := min(p.waiting.n, maxBatch)
	for range n {
		promise := p.waiting.moveFirst(&p.sent)
		s.last++
		promise.id = s.last
		s.open[promise.id] = promise
		b.add(promise)
	}
	s.idle = n == 0
	return n
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
		if err := s.hear(request, first); err != nil {
			return status.Error(codes.FailedPrecondition, err.Error())
		}
	}
}

func (s *session) hear(request *pluginv1.AdmitRequest, first bool) error {
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
		s.err = fmt.Errorf("%w: it said hello twice", ErrProtocol)
	}
	if s.err != nil {
		s.greeted = false // nothing more is sent, and no check waits for another try
		return s.err
	}
	if first {
		s.greeted, s.heard = true, time.Now()
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
		s.plugin.settle(promise, nil)
		return
	}
	text := r.GetMessage()
	err := status.Error(code, strings.ToValidUTF8(text[:min(len(text), maxRefusal)], ""))
	switch code {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.Unavailable, codes.ResourceExhausted:
		s.plugin.fail(&s.plugin.sent, promise, err)
	default:
		s.plugin.settle(promise, refusal(promise.pin, err))
	}
}

// batch is a message of checks whose parts are used again and again.
type batch struct {
	message    pluginv1.AdmitResponse
	admissions []*pluginv1.Admission
}

func newBatch(url string) *batch {
	b := &batch{admissions: make([]*pluginv1.Admission, maxBatch)}
	for i := range b.admissions {
		b.admissions[i] = &pluginv1.Admission{ServiceUrl: url, Pin: &pluginv1.Pin{}}
	}
	return b
}

func (b *batch) reset() { b.message.Admissions = b.admissions[:0] }

func (b *batch) add(promise *Promise) {
	n := len(b.message.GetAdmissions())
	b.message.Admissions = b.admissions[:n+1]
	a := b.admissions[n]
	a.Id, a.Pin.PackageName, a.Pin.InstanceId = promise.id, promise.pin.PackageName, promise.pin.InstanceID
}

// pauses are those before a plugin that ended soon is started again.
var pauses = backoff.Backoff{Min: 100 * time.Millisecond, Max: 10 * time.Second}

// supervise starts the goroutine of an admission plugin. It is false if the host is closed.
func (h *Host) supervise(p *AdmissionPlugin, running chan struct{}) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	if h.admissions == nil {
		h.admissions = map[*AdmissionPlugin]struct{}{}
	}
	h.admissions[p] = struct{}{}
	h.watching.Go(func() {
		defer close(running)
		p.run()
	})
	return true
}

func (h *Host) unsupervise(p *AdmissionPlugin) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.admissions, p)
}

func (p *AdmissionPlugin) run() {
	for {
		pause, ok := p.next()
		if !ok {
			return
		}
		if pause > 0 {
			timer := time.NewTimer(pause)
			p.await(nil, nil, timer.C)
			timer.Stop()
			continue // the checks may have timed out meanwhile
		}
		p.runOnce()
	}
}

// next says how long to wait before the plugin is started, or that it need not be started now and that run ends.
func (p *AdmissionPlugin) next() (pause time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.waiting.n == 0 {
		p.running = nil
		p.disarm()
		p.host.unsupervise(p)
		return 0, false
	}
	return max(0, time.Until(p.notBefore)), true
}

func (p *AdmissionPlugin) disarm() {
	p.armed = false
	select {
	case <-p.nudge:
	default:
	}
}

func (p *AdmissionPlugin) runOnce() {
	s := newSession(p)
	ctx := context.Background()
	if p.logger != nil {
		ctx = WithLogger(ctx, p.logger)
	}
	p.begin(s)
	proc, err := p.host.Launch(ctx, Spec{Args: p.args, Protocol: p.protocol, Controller: &Controller{Admissions: s}})
	if err == nil {
		hangs := p.await(proc.Done(), s.over, nil)
		if err = p.end(proc, hangs); p.isUnmet(s) {
			err = fmt.Errorf("%w, before it called its host; a plugin of CIPD needs the protocol %q, see AdmissionSpec", err, ProtocolCIPD)
		}
	}
	p.finish(s, fmt.Errorf("%w: %w", ErrCrashed, err))
	s.receiving.Wait()
}

// isUnmet reports whether a plugin of which no protocol was said has not called its host, as one of CIPD does not that is given the
// handshake of another protocol.
func (p *AdmissionPlugin) isUnmet(s *session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.protocol == "" && !s.taken
}

func (p *AdmissionPlugin) begin(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session = s
}

// end terminates a plugin, if it has not ended, and waits for its end. Meanwhile checks may time out.
func (p *AdmissionPlugin) end(proc *PluginProcess, hangs bool) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if hangs {
		cancel() // it would not hear that it is asked to end, and checks wait for the next one
	}
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = proc.Terminate(ctx)
	}()
	p.await(ended, nil, nil)
	select {
	case <-ended:
	case <-p.kill:
		cancel()
		<-ended
	}
	if errors.Is(err, process.ErrTimeout) {
		proc.abandon()
	}
	return err
}

// finish refuses the checks that the plugin has not answered. Those that it was not asked wait for the next one, unless this one
// has not even said hello. If it hung all of them wait: what made it hang has timed out.
func (p *AdmissionPlugin) finish(s *session, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session = nil
	if s.hangs {
		for p.waiting.n > 0 {
			p.waiting.moveFirst(&p.sent)
		}
		p.waiting, p.sent = p.sent, promises{}
	} else {
		p.failAll(&p.sent, cmp.Or(s.err, err))
		if !s.greeted {
			p.failAll(&p.waiting, cmp.Or(s.err, err))
		}
	}
	if time.Since(s.start) >= pauses.Max {
		p.failures = 0
		return
	}
	p.failures++
	p.notBefore = time.Now().Add(pauses.After(p.failures))
}

// await waits until one of the channels says so, or until Close is called. Meanwhile checks time out. It also returns when the
// plugin hangs.
func (p *AdmissionPlugin) await(a, b <-chan struct{}, c <-chan time.Time) (hangs bool) {
	for {
		var expiry <-chan time.Time
		deadline, hangs := p.expire(time.Now())
		if hangs && b != nil {
			return true
		}
		var timer *time.Timer
		if !deadline.IsZero() {
			timer = time.NewTimer(time.Until(deadline))
			expiry = timer.C
		}
		again := false
		select {
		case <-a:
		case <-b:
		case <-c:
		case <-p.aborted:
		case <-p.nudge:
			again = true
		case <-expiry:
			again = true
		}
		if timer != nil {
			timer.Stop()
		}
		if !again {
			return false
		}
	}
}

// expire refuses the checks whose time is over, and returns the next deadline; zero if there is none. The plugin hangs if a check
// timed out and no other was answered for half of that time.
func (p *AdmissionPlugin) expire(now time.Time) (deadline time.Time, hangs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, list := range []*promises{&p.sent, &p.waiting} {
		for list.n > 0 && !list.first.deadline.After(now) {
			if p.session != nil && now.Sub(p.session.heard) >= p.timeout/2 {
				p.session.hangs, hangs = true, true
			}
			p.fail(list, list.first, ErrTimeout)
		}
		if list.n > 0 && (deadline.IsZero() || list.first.deadline.Before(deadline)) {
			deadline = list.first.deadline
		}
	}
	p.armed = !deadline.IsZero()
	if !p.armed {
		p.disarm()
	}
	return deadline, hangs
}
