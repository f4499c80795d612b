package dra_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/dra"
	"github.com/patchbay-dev/patchbay/handlers/handlertest"
)

func TestConformance(t *testing.T) {
	for name, versions := range map[string][]string{"V1": onlyV1, "V1beta1": onlyV1beta1, "Health": withHealth} {
		t.Run(name, func(t *testing.T) {
			handlertest.Suite{
				NewHandler: func(string) (cache.PluginHandler, error) {
					return &dra.Handler{}, nil
				},
				Versions: versions,
				Serve:    func(s grpc.ServiceRegistrar, name string) { newFake(name).register(s) },
				WrongVersions: [][]string{
					nil, {"v1"}, {"v1alpha3.Node"}, {"v1alpha1.DRAResourceHealth"}, {"v1.draplugin"}, {"k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"},
				},
				WrongNames:      []string{"", "GPU.example.com", "gpu_example", "../gpu", "-gpu", "gpu.", strings.Repeat("a", 64), "a\x00"},
				HoldsConnection: true,
				Has: func(h cache.PluginHandler, name string) bool {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					_, err := h.(*dra.Handler).Prepare(ctx, name, claim("1"))
					return !errors.Is(err, dra.ErrNotRegistered)
				},
			}.Test(t)
		})
	}
}

func TestNegotiate(t *testing.T) {
	for _, c := range []struct {
		announced []string
		want      string
	}{
		{onlyV1, "v1.DRAPlugin"},
		{onlyV1beta1, "v1beta1.DRAPlugin"},
		{[]string{"v1beta1.DRAPlugin", "v2.DRAPlugin", "v1.DRAPlugin"}, "v1.DRAPlugin"},
		{withHealth, "v1.DRAPlugin"},
	} {
		if got, err := dra.Negotiate(c.announced); got != c.want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", c.announced, got, err, c.want)
		}
	}
	for _, c := range []struct {
		announced []string
		want      string
	}{
		{nil, "no gRPC services were announced; announce one of v1.DRAPlugin, v1beta1.DRAPlugin as version"},
		{[]string{"v9.\x1b[2J"}, `none of the announced gRPC services "v9.\x1b[2J" is supported; ` +
			"announce one of v1.DRAPlugin, v1beta1.DRAPlugin as version"},
	} {
		if got, err := dra.Negotiate(c.announced); got != "" || err == nil || err.Error() != c.want {
			t.Errorf("%q: got %q, %v, want %s", c.announced, got, err, c.want)
		}
	}
	if _, err := dra.Negotiate(make([]string, 100_000)); err == nil || len(err.Error()) > 1000 {
		t.Errorf("the error for very many services is not short: %d bytes", len(err.Error()))
	}
}

func TestRegistration(t *testing.T) {
	h := newHandler(t, &dra.Handler{})
	s := serve(t, newFake("a").register)
	got, err := h.RegisterPluginContext(t.Context(), driverName, s.socket, withHealth, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !got.WatchEndpoint || got.Details[dra.KeyService] != "v1.DRAPlugin" || got.Details[dra.KeyHealth] != "v1alpha1.DRAResourceHealth" {
		t.Errorf("registration %+v", got)
	}
	got, err = h.RegisterPluginContext(t.Context(), driverName, s.socket, onlyV1beta1, nil)
	if err != nil || got.Details[dra.KeyService] != "v1beta1.DRAPlugin" || got.Details[dra.KeyHealth] != "" {
		t.Errorf("registration %+v, %v", got, err)
	}
}

// TestNotThereYet: it is not the driver's fault.
func TestNotThereYet(t *testing.T) {
	h := newHandler(t, &dra.Handler{}) // what can be seen immediately does not take the timeout
	path := filepath.Join(t.TempDir(), "dra.sock")
	_, err := h.RegisterPluginContext(t.Context(), driverName, path, onlyV1, nil)
	if !errors.Is(err, cache.ErrRetry) || !strings.Contains(err.Error(), "no gRPC connection: ") ||
		!strings.Contains(err.Error(), "no such file") {
		t.Errorf("got %v", err)
	}
	silent, err := net.Listen("unix", filepath.Join(t.TempDir(), "dra.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	hurried := newHandler(t, &dra.Handler{ConnectTimeout: time.Second})
	_, err = hurried.RegisterPluginContext(t.Context(), driverName, silent.Addr().String(), onlyV1, nil)
	if !errors.Is(err, cache.ErrRetry) || !strings.Contains(err.Error(), "within 1s: somebody accepts there, and does not answer") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = h.RegisterPluginContext(ctx, driverName, silent.Addr().String(), onlyV1, nil)
	if !errors.Is(err, cache.ErrRetry) || !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
}

func TestClosed(t *testing.T) {
	h := &dra.Handler{}
	s := serve(t, newFake("a").register)
	register(t, h, s, withHealth)
	for range 2 {
		if err := h.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if _, err := h.RegisterPluginContext(t.Context(), driverName, s.socket, onlyV1, nil); !errors.Is(err, dra.ErrClosed) {
		t.Errorf("Register: %v", err)
	}
	if _, err := h.Prepare(t.Context(), driverName, claim("1")); !errors.Is(err, dra.ErrClosed) {
		t.Errorf("Prepare: %v", err)
	}
	s.kill()
	if _, err := h.RegisterPluginContext(t.Context(), driverName, s.socket, onlyV1, nil); !errors.Is(err, dra.ErrClosed) {
		t.Errorf("Register without a driver: %v", err)
	}
	for _, claims := range [][]*drav1.Claim{nil, {nil}, {claim("1")}} {
		if _, err := h.Prepare(t.Context(), driverName, claims...); !errors.Is(err, dra.ErrClosed) {
			t.Errorf("Prepare of %v: %v", claims, err)
		}
		if _, err := h.Unprepare(t.Context(), driverName, claims...); !errors.Is(err, dra.ErrClosed) {
			t.Errorf("Unprepare of %v: %v", claims, err)
		}
	}
	if devices := h.Health(driverName); devices != nil {
		t.Errorf("the health is %v", devices)
	}
}

// TestUnprepareFollowsPrepare: a driver that ignores that nobody waits for its answer any more is done with a claim before it is asked to
// unprepare it. Otherwise the claim stays prepared for nobody.
func TestUnprepareFollowsPrepare(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"canceled": patience, "timed out": 50 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			h := newHandler(t, &dra.Handler{Timeout: 2 * patience})
			f := newFake("a")
			called, finish := make(chan struct{}), make(chan struct{})
			var prepared atomic.Bool
			f.prepare = func(_ context.Context, r *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
				close(called)
				<-finish
				prepared.Store(true)
				return f.answer(r), nil
			}
			f.unprepare = func(context.Context, *drav1.NodeUnprepareResourcesRequest) (*drav1.NodeUnprepareResourcesResponse, error) {
				prepared.Store(false)
				return &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{"1": {}}}, nil
			}
			if _, err := h.RegisterPluginContext(t.Context(), driverName, serve(t, f.register).socket, onlyV1, &timeout); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := h.Prepare(ctx, driverName, claim("1"))
				ended <- err
			}()
			receive(t, called)
			if name == "canceled" {
				cancel()
			}
			if err := receive(t, ended); err == nil {
				t.Error("Prepare returns nothing wrong")
			}
			short, end := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer end()
			_, err := h.Unprepare(short, driverName, claim("1"))
			close(finish)
			if err == nil || !strings.Contains(err.Error(), "another call for one of them is running") {
				t.Errorf("Unprepare while the driver still prepares: %v", err)
			}
			for err != nil { // its own timeout is short too
				_, err = h.Unprepare(t.Context(), driverName, claim("1"))
			}
			eventually(t, "the driver has ended", func() bool { return f.calls.Load() >= 2 })
			if prepared.Load() {
				t.Error("the claim was unprepared, and is prepared")
			}
		})
	}
}

// TestCloseEndsAbandonedCalls: a call that nobody waits for, to an instance that is gone, does not outlive the handler.
func TestCloseEndsAbandonedCalls(t *testing.T) {
	h := &dra.Handler{Timeout: time.Hour}
	f := newFake("a")
	called := make(chan struct{})
	f.prepare = func(ctx context.Context, _ *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
		close(called)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s := serve(t, f.register)
	register(t, h, s, onlyV1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := h.Prepare(ctx, driverName, claim("1"))
		ended <- err
	}()
	receive(t, called)
	cancel()
	if err := receive(t, ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	h.InstanceGone(driverName, s.socket)
	if s.open.Load() != 1 {
		t.Error("the call was cut off with its caller")
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "the connection is closed", func() bool { return s.open.Load() == 0 })
}

// TestRefuses checks that a Handler with a negative timeout accepts no driver, and that any refuses invalid claims and drivers.
func TestRefuses(t *testing.T) {
	for name, h := range map[string]*dra.Handler{
		"CallTimeout": {CallTimeout: -1}, "Timeout": {Timeout: -1}, "ConnectTimeout": {ConnectTimeout: -1},
	} {
		socket := serve(t, newFake("gpu-0").register).socket
		for what, err := range map[string]error{
			"ValidatePlugin": h.ValidatePlugin(driverName, "", onlyV1), "RegisterPlugin": h.RegisterPlugin(driverName, socket, onlyV1, nil),
		} {
			if err == nil || !strings.Contains(err.Error(), "negative") {
				t.Errorf("%s with a negative %s: %v", what, name, err)
			}
		}
	}
	h := newHandler(t, &dra.Handler{})
	f := newFake("gpu-0")
	register(t, h, serve(t, f.register), onlyV1)
	for name, claims := range map[string][]*drav1.Claim{
		"a nil claim": {nil}, "no UID": {{Namespace: "n", Name: "c"}}, "one claim twice": {claim("1"), claim("1")},
		"a control character": {{Namespace: "n", Name: "c\x1b", Uid: "1"}},
	} {
		_, err := h.Prepare(t.Context(), driverName, claims...)
		_, otherErr := h.Unprepare(t.Context(), driverName, claims...)
		if err == nil || otherErr == nil {
			t.Errorf("%s: the errors are %v and %v", name, err, otherErr)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := h.Prepare(ended, driverName, claim("1"))
	_, otherErr := h.Unprepare(ended, driverName, claim("1"))
	if !errors.Is(err, context.Canceled) || !errors.Is(otherErr, context.Canceled) {
		t.Errorf("with a context that has ended: %v and %v", err, otherErr)
	}
	if _, err := h.Prepare(t.Context(), driverName, claim("1")); err != nil || f.calls.Load() != 1 { // after those for the same claim
		t.Errorf("the driver was called %d times: %v", f.calls.Load(), err)
	}
	if _, err := h.RegisterPluginContext(ended, driverName, "/nowhere", onlyV1, nil); !errors.Is(err, cache.ErrRetry) {
		t.Errorf("with a context that has ended: %v", err)
	}
	for range 2 {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		h.DeRegisterPlugin(driverName)
		h.InstanceGone("", "")
		if err := h.RegisterPlugin(driverName, "/nowhere", onlyV1, nil); !errors.Is(err, dra.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if _, err := h.Prepare(t.Context(), driverName); !errors.Is(err, dra.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if h.Health(driverName) != nil {
			t.Error("a closed handler has a state")
		}
	}
}
