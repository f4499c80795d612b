package host

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
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

// begin starts to receive, unless it was called already.
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

// send sends checks until the plugin ends the stream or has to end.
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

// receive takes answers until the stream ends.
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

// hear takes one message of the plugin.
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

// resolve takes an answer.
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
