package supervise

import (
	"cmp"
	"context"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/launch/machine"
	"github.com/patchbay-dev/patchbay/internal/pendingcalls"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	healthServing    = healthpb.HealthCheckResponse_SERVING
	healthNotServing = healthpb.HealthCheckResponse_NOT_SERVING
)

// fakeConn is a connection in memory to a plugin that answers after delay, with err or the status that is set.
type fakeConn struct {
	mu       sync.Mutex
	delay    time.Duration
	err      error
	status   healthpb.HealthCheckResponse_ServingStatus
	watchErr error
	changed  chan struct{} // closed with the next change of the status
	checks   int
}

// checks are the default settings.
var checks = Checks{HealthCheck: plugin.HealthCheck{Interval: time.Second, Timeout: 500 * time.Millisecond, Misses: 3}}

func newFakeConn() *fakeConn { return &fakeConn{status: healthServing, changed: make(chan struct{})} }

// set changes what the plugin answers.
func (c *fakeConn) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *fakeConn) Invoke(ctx context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	c.mu.Lock()
	c.checks++
	delay := c.delay
	c.mu.Unlock()
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-time.After(delay):
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	reply.(*healthpb.HealthCheckResponse).Status = c.status
	return c.err
}

func (c *fakeConn) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return &fakeStream{conn: c, ctx: ctx}, nil
}

type fakeStream struct {
	grpc.ClientStream
	conn *fakeConn
	ctx  context.Context //nolint:containedctx // as a stream has
	sent bool
	last healthpb.HealthCheckResponse_ServingStatus
}

func (s *fakeStream) SendMsg(any) error { return nil }
func (s *fakeStream) CloseSend() error  { return nil }
func (s *fakeStream) RecvMsg(m any) error {
	for {
		s.conn.mu.Lock()
		now, err, changed := s.conn.status, s.conn.watchErr, s.conn.changed
		s.conn.mu.Unlock()
		if err != nil {
			return err
		}
		if !s.sent || now != s.last {
			s.sent, s.last = true, now
			m.(*healthpb.HealthCheckResponse).Status = now
			return nil
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return status.FromContextError(s.ctx.Err()).Err()
		}
	}
}

// watched is a running FollowHealth, with the states that it has found.
type watched struct {
	conn *fakeConn
	mu   sync.Mutex
	told []plugin.ServingStatus
	errs []error
	end  func()
}

func watchHealth(t *testing.T, conn *fakeConn) *watched { return watchChecks(t, conn, checks) }

func watchChecks(t *testing.T, conn *fakeConn, checks Checks) *watched {
	w := &watched{conn: conn}
	checks.Crowd = cmp.Or(checks.Crowd, new(Crowd))
	observe := func(s machine.HealthFound) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.told = append(w.told, s.State)
		w.errs = append(w.errs, s.Err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	following.Go(func() {
		if AwaitFirstCheck(ctx) {
			FollowHealth(ctx, conn, checks, observe)
		}
	})
	w.end = sync.OnceFunc(func() {
		cancel()
		following.Wait()
	})
	t.Cleanup(w.end)
	w.expect(t) // the first check is delayed
	time.Sleep(firstCheck)
	synctest.Wait()
	return w
}

func (w *watched) expect(t *testing.T, states ...plugin.ServingStatus) {
	t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.told, states) {
		t.Errorf("told %v, want %v", w.told, states)
	}
	w.told = nil
}

// lastErr returns the error of the last state.
func (w *watched) lastErr() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.errs[len(w.errs)-1]
}

const second = time.Second

var errUnimplemented = status.Error(codes.Unimplemented, "no such method")

// TestHealthWatch: with Watch a change is found immediately, and otherwise with the next check.
func TestHealthWatch(t *testing.T) {
	for _, offered := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			conn := newFakeConn()
			if !offered {
				conn.watchErr = errUnimplemented
			}
			w := watchHealth(t, conn)
			w.expect(t, plugin.ServingStatusServing)
			for range 3 {
				time.Sleep(100*time.Millisecond + 7*second)
				conn.set(func() { conn.status = healthNotServing })
				if !offered {
					time.Sleep(second)
				}
				w.expect(t, plugin.ServingStatusNotServing)
				conn.set(func() { conn.status = healthServing })
				time.Sleep(second)
				w.expect(t, plugin.ServingStatusServing)
			}
		})
	}
}

// TestHealthWatchBreaks: a watch that has ended is started again.
func TestHealthWatchBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := newFakeConn()
		w := watchHealth(t, conn)
		w.expect(t, plugin.ServingStatusServing)
		conn.set(func() { conn.watchErr = io.ErrUnexpectedEOF })
		synctest.Wait()
		conn.set(func() { conn.watchErr = nil })
		time.Sleep(5*second + 50*time.Millisecond)
		conn.set(func() { conn.status = healthNotServing })
		w.expect(t, plugin.ServingStatusNotServing)
	})
}

// TestHealthHangs: a plugin that hangs is unresponsive within the documented time, and recovers.
func TestHealthHangs(t *testing.T) {
	for _, offered := range []bool{true, false} {
		for phase := range 20 {
			synctest.Test(t, func(t *testing.T) {
				conn := newFakeConn()
				if !offered {
					conn.watchErr = errUnimplemented
				}
				w := watchHealth(t, conn)
				w.expect(t, plugin.ServingStatusServing)
				time.Sleep(10*second + time.Duration(phase)*50*time.Millisecond)
				conn.set(func() { conn.delay = time.Hour })
				time.Sleep(time.Second)
				w.expect(t)
				time.Sleep(1500 * time.Millisecond)
				w.expect(t, plugin.ServingStatusUnresponsive)
				if w.lastErr() == nil {
					t.Error("it is not said why")
				}
				time.Sleep(time.Minute)
				w.expect(t)
				conn.set(func() { conn.delay = 0 })
				time.Sleep(1500 * time.Millisecond)
				w.expect(t, plugin.ServingStatusServing)
			})
		}
	}
}

// TestHealthSlowOnce: a plugin that is slow for a while is not unresponsive.
func TestHealthSlowOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := newFakeConn()
		w := watchHealth(t, conn)
		for range 20 {
			time.Sleep(1730 * time.Millisecond)
			conn.set(func() { conn.delay = time.Hour })
			time.Sleep(990 * time.Millisecond)
			conn.set(func() { conn.delay = 400 * time.Millisecond })
		}
		w.expect(t, plugin.ServingStatusServing)
	})
}

// TestHealthCrowd: plugins that stop answering at the same time have a slow machine. They are checked no more often, and have ten times as
// long. A few that hang among many that answer are unresponsive within the documented time.
func TestHealthCrowd(t *testing.T) {
	for _, late := range []int{1, 7, 8, 40} {
		synctest.Test(t, func(t *testing.T) {
			checks, conn := checks, newFakeConn()
			checks.Crowd = new(Crowd)
			var all []*watched
			for range late {
				all = append(all, watchChecks(t, conn, checks))
			}
			for range 40 - late {
				watchChecks(t, newFakeConn(), checks)
			}
			expect := func(states ...plugin.ServingStatus) {
				t.Helper()
				for _, w := range all {
					w.expect(t, states...)
				}
			}
			expect(plugin.ServingStatusServing)
			conn.set(func() { conn.delay, conn.checks = time.Hour, 0 })
			time.Sleep(2500 * time.Millisecond)
			if late < 8 {
				expect(plugin.ServingStatusUnresponsive)
				return
			}
			time.Sleep(20 * second)
			expect()
			conn.set(func() {
				if conn.delay = 400 * time.Millisecond; conn.checks > 26*late {
					t.Errorf("%d checks of %d plugins in 22.5 s", conn.checks, late)
				}
			})
			time.Sleep(20 * second)
			expect()
			conn.set(func() { conn.delay = time.Hour })
			time.Sleep(32 * second)
			expect(plugin.ServingStatusUnresponsive)
			if missing := checks.Crowd.missing.Load(); missing != 0 {
				t.Errorf("%d plugins are missing that are known to hang", missing)
			}
		})
	}
}

// TestHealthCrowdIsBusy: plugins that work on calls do not excuse one that hangs.
func TestHealthCrowdIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checks, conn := checks, newFakeConn()
		checks.Crowd = new(Crowd)
		hanging := watchChecks(t, conn, checks)
		var calls []*pendingcalls.Counter
		for range 20 {
			busy := checks
			busy.Pending = new(pendingcalls.Counter)
			watchChecks(t, conn, busy)
			calls = append(calls, busy.Pending)
		}
		hanging.expect(t, plugin.ServingStatusServing)
		conn.set(func() { conn.delay = time.Hour })
		for _, c := range calls {
			c.Begin()
		}
		time.Sleep(2500 * time.Millisecond)
		hanging.expect(t, plugin.ServingStatusUnresponsive)
	})
}

// TestHealthBusy: a plugin that works on calls is not unresponsive, however long they take.
func TestHealthBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, checks := newFakeConn(), checks
		checks.Pending = new(pendingcalls.Counter)
		w := watchChecks(t, conn, checks)
		w.expect(t, plugin.ServingStatusServing)
		conn.set(func() { conn.delay = time.Hour })
		call := checks.Pending.Begin()
		for range 10 { // there is always a call without an answer
			time.Sleep(10 * second)
			next := checks.Pending.Begin()
			time.Sleep(10 * second)
			call.End(nil)
			call = next
			w.expect(t)
		}
		call.End(status.Error(codes.DeadlineExceeded, "")) // this one was not answered
		time.Sleep(2500 * time.Millisecond)
		w.expect(t, plugin.ServingStatusUnresponsive)
	})
}

// TestHealthHangsUnderLoad: calls that a plugin does not answer do not excuse missed checks, however many there are.
func TestHealthHangsUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, checks := newFakeConn(), checks
		checks.Pending = new(pendingcalls.Counter)
		w := watchChecks(t, conn, checks)
		w.expect(t, plugin.ServingStatusServing)
		conn.set(func() { conn.delay = time.Hour })
		var calls []pendingcalls.Call
		for range 15 { // one begins each second, with a timeout of 10 s
			calls = append(calls, checks.Pending.Begin())
			time.Sleep(second)
			if len(calls) > 10 {
				calls[len(calls)-11].End(status.Error(codes.DeadlineExceeded, ""))
			}
		}
		w.expect(t, plugin.ServingStatusUnresponsive)
	})
}

// TestHealthHangsWithIdleStream: a plugin that answers checks while a call waits can answer them, so the call does not excuse it later.
func TestHealthHangsWithIdleStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, checks := newFakeConn(), checks
		checks.Pending = new(pendingcalls.Counter)
		checks.Pending.Begin()
		w := watchChecks(t, conn, checks)
		time.Sleep(5 * second)
		w.expect(t, plugin.ServingStatusServing)
		conn.set(func() { conn.delay = time.Hour })
		time.Sleep(3 * second)
		w.expect(t, plugin.ServingStatusUnresponsive)
	})
}

// TestHealthConfigured: the interval, timeout and misses of the plugin are used.
func TestHealthConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := newFakeConn()
		w := watchChecks(t, conn, Checks{HealthCheck: plugin.HealthCheck{Interval: time.Minute, Timeout: 20 * second, Misses: 5}})
		w.expect(t, plugin.ServingStatusServing)
		conn.set(func() { conn.delay = 19 * second })
		time.Sleep(10 * time.Minute)
		w.expect(t)
		if conn.checks > 14 {
			t.Errorf("%d checks in ten minutes, want one a minute", conn.checks)
		}
		conn.set(func() { conn.delay = time.Hour })
		time.Sleep(100 * second)
		w.expect(t)
		time.Sleep(80 * second)
		w.expect(t, plugin.ServingStatusUnresponsive)
	})
}

// TestHealthGone: checks that fail immediately, because nothing listens, are not made more often.
func TestHealthGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := newFakeConn()
		conn.err = status.Error(codes.Unavailable, "connection refused")
		conn.watchErr = conn.err
		w := watchHealth(t, conn)
		time.Sleep(900 * time.Millisecond)
		w.expect(t)
		time.Sleep(200 * time.Millisecond)
		w.expect(t, plugin.ServingStatusUnresponsive)
		time.Sleep(time.Minute)
		w.end()
		if conn.checks > 75 {
			t.Errorf("%d checks in a minute", conn.checks)
		}
	})
}

func TestHealthNotOffered(t *testing.T) {
	for _, code := range []codes.Code{codes.Unimplemented, codes.NotFound} {
		synctest.Test(t, func(t *testing.T) {
			conn := newFakeConn()
			conn.err = status.Error(code, "no")
			conn.watchErr = conn.err
			w := watchHealth(t, conn)
			w.expect(t, plugin.ServingStatusNotOffered)
			time.Sleep(time.Hour)
			w.end()
			if conn.checks != 1 {
				t.Errorf("%d checks", conn.checks)
			}
		})
	}
}

// TestHealthErrors: an error of the plugin itself counts as an answer.
func TestHealthErrors(t *testing.T) {
	for name, answer := range map[string]func(c *fakeConn){
		"error":   func(c *fakeConn) { c.err = status.Error(codes.Internal, "broken") },
		"unknown": func(c *fakeConn) { c.status = healthpb.HealthCheckResponse_UNKNOWN },
		"strange": func(c *fakeConn) { c.status = 77 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := newFakeConn()
				conn.watchErr = errUnimplemented
				answer(conn)
				w := watchHealth(t, conn)
				time.Sleep(time.Minute)
				w.expect(t, plugin.ServingStatusNotServing)
				if w.lastErr() == nil {
					t.Error("it is not said why")
				}
			})
		})
	}
}
