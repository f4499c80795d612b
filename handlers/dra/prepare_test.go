package dra_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/patchbay-dev/patchbay/handlers/dra"
)

func TestPrepareAndUnprepare(t *testing.T) {
	for _, version := range [][]string{onlyV1, onlyV1beta1} {
		t.Run(version[0], func(t *testing.T) {
			h := newHandler(t, &dra.Handler{})
			f := newFake("gpu-0")
			// Only the service of that version is there.
			serveVersion := func(s grpc.ServiceRegistrar) { drav1.RegisterDRAPluginServer(s, f) }
			if version[0] != "v1.DRAPlugin" {
				serveVersion = f.registerV1beta1
			}
			register(t, h, serve(t, serveVersion), version)
			for range 2 {
				got, err := h.Prepare(t.Context(), driverName, claim("1"), claim("2"))
				if err != nil || len(got) != 2 {
					t.Fatalf("prepared %+v, %v", got, err)
				}
				for uid, p := range got {
					if p.Err != nil || len(p.Devices) != 1 {
						t.Fatalf("claim %s: %+v", uid, p)
					}
					d := p.Devices[0]
					if d.GetPoolName() != "node-1" || d.GetDeviceName() != "gpu-0" || d.GetCdiDeviceIds()[0] != "example.com/gpu=gpu-0" ||
						d.GetRequestNames()[0] != "request" || (d.ShareId != nil) != (version[0] == "v1.DRAPlugin") {
						t.Errorf("claim %s: device %v", uid, d)
					}
				}
			}
			for range 2 {
				got, err := h.Unprepare(t.Context(), driverName, claim("1"), claim("2"))
				if err != nil || len(got) != 2 || got["1"] != nil || got["2"] != nil {
					t.Errorf("unprepared %v, %v", got, err)
				}
			}
			if n := f.calls.Load(); n != 4 {
				t.Errorf("%d calls, want one for all claims each", n)
			}
		})
	}
}

// TestErrorsOfClaims: each claim has its own error, and those of others do not matter to it.
func TestErrorsOfClaims(t *testing.T) {
	h := newHandler(t, &dra.Handler{})
	f := newFake("a")
	f.prepare = func(_ context.Context, r *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
		answer := f.answer(r)
		answer.Claims["bad"] = &drav1.NodePrepareResourceResponse{
			Error: "no such GPU\x1b[2J" + strings.Repeat("x", 100_000), Devices: []*drav1.Device{{}},
		}
		answer.Claims["stranger"] = &drav1.NodePrepareResourceResponse{}
		delete(answer.Claims, "missing")
		answer.Claims["nil"] = nil
		return answer, nil
	}
	f.unprepare = func(context.Context, *drav1.NodeUnprepareResourcesRequest) (*drav1.NodeUnprepareResourcesResponse, error) {
		return &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{
			"good": {}, "nil": nil, "bad": {Error: "busy"}, "stranger": {},
		}}, nil
	}
	register(t, h, serve(t, f.register), onlyV1)
	claims := []*drav1.Claim{claim("good"), claim("bad"), claim("missing"), claim("nil")}
	prepared, err := h.Prepare(t.Context(), driverName, claims...)
	if err != nil || len(prepared) != 4 {
		t.Fatalf("%d prepared, %v", len(prepared), err)
	}
	unprepared, err := h.Unprepare(t.Context(), driverName, claims...)
	if err != nil || len(unprepared) != 4 {
		t.Fatalf("%d unprepared, %v", len(unprepared), err)
	}
	for _, uid := range []string{"good", "nil"} {
		if prepared[uid].Err != nil || unprepared[uid] != nil {
			t.Errorf("%s: %v, %v", uid, prepared[uid].Err, unprepared[uid])
		}
	}
	if e := prepared["bad"]; e.Err == nil || e.Devices != nil || len(e.Err.Error()) > 500 ||
		!strings.Contains(e.Err.Error(), `did not prepare claim default/claim-bad: the driver says: "no such GPU\x1b[2Jxxx`) {
		t.Errorf("bad: %v", e)
	}
	if e := unprepared["bad"]; e == nil ||
		e.Error() != `DRA driver gpu.example.com did not unprepare claim default/claim-bad: the driver says: "busy"` {
		t.Errorf("bad: %v", e)
	}
	for _, e := range []error{prepared["missing"].Err, unprepared["missing"]} {
		if e == nil || !strings.Contains(e.Error(), "claim-missing: the driver's answer says nothing of it") {
			t.Errorf("missing: %v", e)
		}
	}
}

func TestHostileDevices(t *testing.T) {
	long := strings.Repeat("x", 2000)
	good := func() *drav1.Device { return &drav1.Device{PoolName: "p", DeviceName: "d"} }
	with := func(change func(*drav1.Device)) []*drav1.Device {
		d := good()
		change(d)
		return []*drav1.Device{good(), d}
	}
	for name, c := range map[string]struct {
		devices []*drav1.Device
		want    string
	}{
		"NoPool":   {with(func(d *drav1.Device) { d.PoolName = "" }), "device 1 of the driver's answer: the pool's name is empty"},
		"NoDevice": {with(func(d *drav1.Device) { d.DeviceName = "" }), "the device's name is empty"},
		"LongPool": {with(func(d *drav1.Device) { d.PoolName = long }), "the pool's name has 2000 bytes; 253 are allowed"},
		"Control":  {with(func(d *drav1.Device) { d.DeviceName = "\x1b[2J" }), `the device's name "\x1b[2J" has characters that cannot be printed`},
		"LongCDI":  {with(func(d *drav1.Device) { d.CdiDeviceIds = []string{long} }), "a CDI device ID has 2000 bytes; 1024 are allowed"},
		"NoCDI":    {with(func(d *drav1.Device) { d.CdiDeviceIds = []string{""} }), "a CDI device ID is empty"},
		"ManyCDI":  {with(func(d *drav1.Device) { d.CdiDeviceIds = make([]string, 300) }), "300 CDI device IDs"},
		"Requests": {with(func(d *drav1.Device) { d.RequestNames = make([]string, 300) }), "300 requests"},
		"Request":  {with(func(d *drav1.Device) { d.RequestNames = []string{"a\nb"} }), "a request's name"},
		"Share":    {with(func(d *drav1.Device) { d.ShareId = &long }), "the share ID has 2000 bytes; 63 are allowed"},
		"Many":     {make([]*drav1.Device, 1025), "1025 devices; 1024 are allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range c.devices {
				if c.devices[i] == nil {
					c.devices[i] = good()
				}
			}
			h := newHandler(t, &dra.Handler{})
			f := newFake("a")
			f.prepare = func(context.Context, *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
				return &drav1.NodePrepareResourcesResponse{
					Claims: map[string]*drav1.NodePrepareResourceResponse{"1": {Devices: c.devices}},
				}, nil
			}
			register(t, h, serve(t, f.register), onlyV1)
			got, err := h.Prepare(t.Context(), driverName, claim("1"))
			if err != nil || got["1"].Devices != nil || got["1"].Err == nil || !strings.Contains(got["1"].Err.Error(), c.want) {
				t.Errorf("got %d devices, %v, %v, want %s", len(got["1"].Devices), got["1"].Err, err, c.want)
			}
		})
	}
}

// TestTooLarge: an answer of more than 4 MiB is none, and costs the connection nothing.
func TestTooLarge(t *testing.T) {
	h := newHandler(t, &dra.Handler{})
	f := newFake("a")
	f.prepare = func(_ context.Context, r *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
		answer := f.answer(r)
		if f.calls.Load() == 1 {
			answer.Claims["1"].Error = strings.Repeat("x", 5<<20)
		}
		return answer, nil
	}
	register(t, h, serve(t, f.register), onlyV1)
	if _, err := h.Prepare(t.Context(), driverName, claim("1")); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
	deviceOf(t, h, "1")
}

func TestClaimsAreChecked(t *testing.T) {
	h := newHandler(t, &dra.Handler{})
	f := newFake("a")
	register(t, h, serve(t, f.register), onlyV1)
	for _, claims := range [][]*drav1.Claim{
		{nil}, {{}}, {{Namespace: "n", Name: "c"}}, {{Namespace: "n", Uid: "1"}}, {{Name: "c", Uid: "1"}},
		{claim("1"), claim("2"), claim("1")}, {claim("1\n")}, {claim(strings.Repeat("1", 300))},
	} {
		if _, err := h.Prepare(t.Context(), driverName, claims...); err == nil {
			t.Errorf("Prepare accepts %v", claims)
		}
		if _, err := h.Unprepare(t.Context(), driverName, claims...); err == nil {
			t.Errorf("Unprepare accepts %v", claims)
		}
	}
	if got, err := h.Prepare(t.Context(), driverName); len(got) != 0 || err != nil {
		t.Errorf("no claims: %v, %v", got, err)
	}
	if n := f.calls.Load(); n != 0 {
		t.Errorf("the driver was called %d times", n)
	}
	if _, err := h.Prepare(t.Context(), "other.example.com", claim("1")); !errors.Is(err, dra.ErrNotRegistered) {
		t.Errorf("unknown driver: %v", err)
	}
}

// TestRollOver: calls go to the newest instance, and the older one is let go of when it goes, not before its calls have ended.
func TestRollOver(t *testing.T) {
	h := newHandler(t, &dra.Handler{})
	older, newer := newFake("older"), newFake("newer")
	called, answer := make(chan struct{}), make(chan struct{})
	older.unprepare = func(context.Context, *drav1.NodeUnprepareResourcesRequest) (*drav1.NodeUnprepareResourcesResponse, error) {
		close(called)
		<-answer
		return &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{"9": nil}}, nil
	}
	olderServer, newerServer := serve(t, older.register), serve(t, newer.register)
	register(t, h, olderServer, onlyV1beta1)
	if got := deviceOf(t, h, "1"); got != "older" {
		t.Errorf("prepared by %s", got)
	}
	running := make(chan error, 1)
	go func() {
		_, err := h.Unprepare(context.Background(), driverName, claim("9"))
		running <- err
	}()
	receive(t, called)
	register(t, h, newerServer, onlyV1)
	if got := deviceOf(t, h, "1"); got != "newer" {
		t.Errorf("prepared by %s", got)
	}
	h.InstanceGone(driverName, olderServer.socket)
	if olderServer.open.Load() != 1 {
		t.Error("a call that runs was cut off")
	}
	close(answer)
	if err := receive(t, running); err != nil || newer.calls.Load() != 1 {
		t.Errorf("a call to the older instance: %v, %d calls to the newer", err, newer.calls.Load())
	}
	eventually(t, "the connection to the older instance is closed", func() bool { return olderServer.open.Load() == 0 })
	if got := deviceOf(t, h, "1"); got != "newer" || newerServer.open.Load() != 1 {
		t.Errorf("prepared by %s on one of %d connections", got, newerServer.open.Load())
	}
}

// TestOlderSurvives: when the newest goes and the pipeline says so, an instance that is still there has the calls.
func TestOlderSurvives(t *testing.T) {
	h := newHandler(t, &dra.Handler{})
	olderServer, newerServer := serve(t, newFake("older").register), serve(t, newFake("newer").register)
	register(t, h, olderServer, onlyV1)
	register(t, h, newerServer, onlyV1)
	h.InstanceGone(driverName, newerServer.socket)
	if got := deviceOf(t, h, "1"); got != "older" {
		t.Errorf("prepared by %s", got)
	}
	register(t, h, newerServer, onlyV1)
	register(t, h, olderServer, onlyV1)
	if got := deviceOf(t, h, "1"); got != "older" {
		t.Errorf("registered again, prepared by %s", got)
	}
}

// TestRetryAcrossRollOver: a call whose driver is killed in the middle of it ends on the next instance.
func TestRetryAcrossRollOver(t *testing.T) {
	h := newHandler(t, &dra.Handler{})
	older, newer := newFake("older"), newFake("newer")
	called := make(chan struct{})
	older.prepare = func(ctx context.Context, _ *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
		close(called)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	olderServer := serve(t, older.register)
	register(t, h, olderServer, onlyV1)
	device := make(chan string, 1)
	go func() { device <- deviceOf(t, h, "1") }()
	receive(t, called)
	register(t, h, serve(t, newer.register), onlyV1)
	olderServer.kill()
	if got := receive(t, device); got != "newer" {
		t.Errorf("prepared by %s", got)
	}
	if n := newer.calls.Load(); n != 1 {
		t.Errorf("%d calls to the newer instance", n)
	}
}

// TestRetryUntilItIsBack: a call outlives the restart of its driver, for which it is deregistered and registered again.
func TestRetryUntilItIsBack(t *testing.T) {
	h := newHandler(t, &dra.Handler{})
	f := newFake("a")
	called := make(chan struct{}, 1)
	f.prepare = func(_ context.Context, r *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
		if f.calls.Load() == 1 {
			called <- struct{}{}
			return nil, status.Error(codes.Unavailable, "going down")
		}
		return f.answer(r), nil
	}
	s := serve(t, f.register)
	register(t, h, s, onlyV1)
	device := make(chan string, 1)
	go func() { device <- deviceOf(t, h, "1") }()
	receive(t, called)
	h.DeRegisterPlugin(driverName)
	s.kill()
	register(t, h, serveAt(t, s.socket, f.register), onlyV1)
	if got := receive(t, device); got != "a" {
		t.Errorf("prepared by %s", got)
	}
}

// TestGivenUp: there is a bound to all repetitions, and the error has both what ended it and what went wrong.
func TestGivenUp(t *testing.T) {
	h := newHandler(t, &dra.Handler{Timeout: 2 * time.Second})
	f := newFake("a")
	f.prepare = func(context.Context, *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
		return nil, status.Error(codes.Unavailable, "not today")
	}
	register(t, h, serve(t, f.register), onlyV1)
	_, err := h.Prepare(t.Context(), driverName, claim("1"))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "not done within 2s") ||
		!strings.Contains(err.Error(), `the last attempt: NodePrepareResources: Unavailable: "not today"`) {
		t.Errorf("got %v", err)
	}
	if n := f.calls.Load(); n < 2 || n > 7 { // six pauses of half their length are 1.6 s
		t.Errorf("%d calls", n)
	}
}

// TestNotRepeated: what the driver refused, or is still at, is not asked again.
func TestNotRepeated(t *testing.T) {
	for code, answer := range map[codes.Code]func(context.Context) error{
		codes.Internal:         func(context.Context) error { return status.Error(codes.Internal, "broken") },
		codes.InvalidArgument:  func(context.Context) error { return status.Error(codes.InvalidArgument, "wrong") },
		codes.DeadlineExceeded: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(code.String(), func(t *testing.T) {
			h := newHandler(t, &dra.Handler{CallTimeout: 2 * time.Second})
			f := newFake("a")
			f.prepare = func(ctx context.Context, _ *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
				return nil, answer(ctx)
			}
			s := serve(t, f.register)
			register(t, h, s, onlyV1)
			_, err := h.Prepare(t.Context(), driverName, claim("1"))
			if status.Code(err) != code || !strings.Contains(err.Error(), "cannot prepare claims with DRA driver gpu.example.com at "+s.socket) {
				t.Errorf("got %v", err)
			}
			if n := f.calls.Load(); n != 1 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// TestClientTimeout: the timeout that is configured for a plugin goes before the handler's.
func TestClientTimeout(t *testing.T) {
	h := newHandler(t, &dra.Handler{})
	f := newFake("a")
	f.prepare = func(ctx context.Context, _ *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	short := 50 * time.Millisecond
	if _, err := h.RegisterPluginContext(t.Context(), driverName, serve(t, f.register).socket, onlyV1, &short); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Prepare(t.Context(), driverName, claim("1")); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
}

// TestOneCallPerClaim: calls for one claim follow each other, calls for others do not wait for them.
func TestOneCallPerClaim(t *testing.T) {
	h := newHandler(t, &dra.Handler{})
	f := newFake("a")
	var mu sync.Mutex
	running := map[string]int{}
	var overlaps, atOnce, most atomic.Int32
	enter := func(claims []*drav1.Claim) func() {
		most.Store(max(most.Load(), atOnce.Add(1)))
		mu.Lock()
		for _, c := range claims {
			if running[c.GetUid()]++; running[c.GetUid()] > 1 {
				overlaps.Add(1)
			}
		}
		mu.Unlock()
		time.Sleep(time.Millisecond)
		return func() {
			mu.Lock()
			defer mu.Unlock()
			for _, c := range claims {
				running[c.GetUid()]--
			}
			atOnce.Add(-1)
		}
	}
	f.prepare = func(_ context.Context, r *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
		defer enter(r.GetClaims())()
		return f.answer(r), nil
	}
	f.unprepare = func(_ context.Context, r *drav1.NodeUnprepareResourcesRequest) (*drav1.NodeUnprepareResourcesResponse, error) {
		defer enter(r.GetClaims())()
		return &drav1.NodeUnprepareResourcesResponse{}, nil
	}
	register(t, h, serve(t, f.register), onlyV1)
	var callers sync.WaitGroup
	for i := range 16 {
		// Each caller has two claims, in different orders.
		a, b := claim(fmt.Sprint(i%5)), claim(fmt.Sprint((i*3+1)%5))
		if a.GetUid() == b.GetUid() {
			b = claim("other")
		}
		callers.Go(func() {
			for range 10 {
				if _, err := h.Prepare(t.Context(), driverName, a, b); err != nil {
					t.Error(err)
				}
				if _, err := h.Unprepare(t.Context(), driverName, b, a); err != nil {
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
	if overlaps.Load() > 0 {
		t.Errorf("%d calls for a claim that had one running", overlaps.Load())
	}
	if most.Load() < 2 {
		t.Error("calls for different claims waited for each other")
	}
}

// TestWaitingForAClaimEnds: who waits for another call for its claim waits no longer than it wants to.
func TestWaitingForAClaimEnds(t *testing.T) {
	h := newHandler(t, &dra.Handler{})
	f := newFake("a")
	called := make(chan struct{}, 1)
	f.prepare = func(ctx context.Context, _ *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
		called <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	register(t, h, serve(t, f.register), onlyV1)
	first, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := h.Prepare(first, driverName, claim("1"))
		ended <- err
	}()
	receive(t, called)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := h.Unprepare(short, driverName, claim("0"), claim("1"))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "another call for one of them is running") {
		t.Errorf("got %v", err)
	}
	if _, err := h.Unprepare(t.Context(), driverName, claim("0")); err != nil {
		t.Errorf("a claim that nobody waits for any more: %v", err)
	}
	end()
	if err := receive(t, ended); !errors.Is(err, context.Canceled) {
		t.Errorf("the first: %v", err)
	}
}

// TestCloseCutsOff: nobody waits for a driver longer than the handler lives.
func TestCloseCutsOff(t *testing.T) {
	h := &dra.Handler{}
	f := newFake("a")
	called := make(chan struct{})
	f.prepare = func(ctx context.Context, _ *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
		close(called)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	register(t, h, serve(t, f.register), withHealth)
	ended := make(chan error, 1)
	go func() {
		_, err := h.Prepare(context.Background(), driverName, claim("1"))
		ended <- err
	}()
	receive(t, called)
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if err := receive(t, ended); !errors.Is(err, dra.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
