package dra_test

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/patchbay-dev/patchbay/handlers/dra"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

// patience is how long a test waits for what should happen at once before it fails.
const patience = 2 * time.Minute

const driverName = "gpu.example.com"

var (
	onlyV1      = []string{"v1.DRAPlugin"}
	onlyV1beta1 = []string{"v1beta1.DRAPlugin"}
	withHealth  = []string{"v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"}
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fake is a DRA driver. Its calls are counted, and answered by prepare and unprepare if they are set, before it serves.
type fake struct {
	drav1.UnimplementedDRAPluginServer
	drahealth.UnimplementedDRAResourceHealthServer

	id        string // its devices are called so
	prepare   func(context.Context, *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error)
	unprepare func(context.Context, *drav1.NodeUnprepareResourcesRequest) (*drav1.NodeUnprepareResourcesResponse, error)
	reports   chan []*drahealth.DeviceHealth
	streams   atomic.Int32
	calls     atomic.Int32
}

func newFake(id string) *fake { return &fake{id: id, reports: make(chan []*drahealth.DeviceHealth)} }

func (f *fake) NodePrepareResources(
	ctx context.Context, r *drav1.NodePrepareResourcesRequest,
) (*drav1.NodePrepareResourcesResponse, error) {
	f.calls.Add(1)
	if f.prepare != nil {
		return f.prepare(ctx, r)
	}
	return f.answer(r), nil
}

// answer prepares all claims.
func (f *fake) answer(r *drav1.NodePrepareResourcesRequest) *drav1.NodePrepareResourcesResponse {
	response := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	for _, claim := range r.GetClaims() {
		share := "share"
		response.Claims[claim.GetUid()] = &drav1.NodePrepareResourceResponse{Devices: []*drav1.Device{{
			RequestNames: []string{"request"}, PoolName: "node-1", DeviceName: f.id,
			CdiDeviceIds: []string{"example.com/gpu=" + f.id}, ShareId: &share,
		}}}
	}
	return response
}

func (f *fake) NodeUnprepareResources(
	ctx context.Context, r *drav1.NodeUnprepareResourcesRequest,
) (*drav1.NodeUnprepareResourcesResponse, error) {
	f.calls.Add(1)
	if f.unprepare != nil {
		return f.unprepare(ctx, r)
	}
	response := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	for _, claim := range r.GetClaims() {
		response.Claims[claim.GetUid()] = &drav1.NodeUnprepareResourceResponse{}
	}
	return response, nil
}

func (f *fake) NodeWatchResources(
	_ *drahealth.NodeWatchResourcesRequest, stream drahealth.DRAResourceHealth_NodeWatchResourcesServer,
) error {
	f.streams.Add(1)
	defer f.streams.Add(-1)
	for {
		select {
		case report := <-f.reports:
			if report == nil {
				return nil
			}
			if err := stream.Send(&drahealth.NodeWatchResourcesResponse{Devices: report}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// report has the driver say something of its devices.
func (f *fake) report(t *testing.T, report ...*drahealth.DeviceHealth) {
	t.Helper()
	select {
	case f.reports <- report:
	case <-time.After(patience):
		t.Fatal("no health stream is open")
	}
}

func of(device string, health drahealth.HealthStatus) *drahealth.DeviceHealth {
	return &drahealth.DeviceHealth{Device: &drahealth.DeviceIdentifier{PoolName: "node-1", DeviceName: device}, Health: health}
}

func (f *fake) register(s grpc.ServiceRegistrar) {
	drav1.RegisterDRAPluginServer(s, f)
	f.registerV1beta1(s)
	drahealth.RegisterDRAResourceHealthServer(s, f)
}

// registerV1beta1 serves v1beta1, whose messages are on the wire what those of v1 are.
func (f *fake) registerV1beta1(s grpc.ServiceRegistrar) {
	desc := drav1.DRAPlugin_ServiceDesc
	desc.ServiceName = "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"
	s.RegisterService(&desc, f)
}

// server serves on a socket.
type server struct {
	socket string
	open   atomic.Int32 // connections
	kill   func()
}

// serve serves on a socket of its own until the end of the test.
func serve(t *testing.T, register func(grpc.ServiceRegistrar)) *server {
	t.Helper()
	return serveAt(t, filepath.Join(t.TempDir(), "dra.sock"), register)
}

func serveAt(t *testing.T, socket string, register func(grpc.ServiceRegistrar)) *server {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{socket: socket}
	g := grpc.NewServer()
	register(g)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = g.Serve(&counting{Listener: listener, open: &s.open}) // ends with Stop
	}()
	s.kill = func() {
		g.Stop()
		<-served
	}
	t.Cleanup(s.kill)
	return s
}

// counting counts the open connections that it accepted.
type counting struct {
	net.Listener
	open *atomic.Int32
}

func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	return &counted{Conn: conn, closed: sync.OnceFunc(func() { c.open.Add(-1) })}, nil
}

type counted struct {
	net.Conn
	closed func()
}

func (c *counted) Close() error {
	c.closed()
	return c.Conn.Close()
}

// newHandler returns a handler that is closed at the end of the test.
func newHandler(t *testing.T, h *dra.Handler) *dra.Handler {
	t.Helper()
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return h
}

// register registers a driver at a socket.
func register(t *testing.T, h *dra.Handler, s *server, versions []string) {
	t.Helper()
	if _, err := h.RegisterPluginContext(t.Context(), driverName, s.socket, versions, nil); err != nil {
		t.Fatal(err)
	}
}

func claim(uid string) *drav1.Claim {
	return &drav1.Claim{Namespace: "default", Name: "claim-" + uid, Uid: uid}
}

// deviceOf prepares a claim and returns the name of its device.
func deviceOf(t *testing.T, h *dra.Handler, uid string) string {
	t.Helper()
	got, err := h.Prepare(t.Context(), driverName, claim(uid))
	if err != nil {
		t.Fatal(err)
	}
	if p := got[uid]; p.Err != nil || len(p.Devices) != 1 {
		t.Fatalf("prepared %+v", p)
	}
	return got[uid].Devices[0].GetDeviceName()
}

// eventually waits until something is true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, patience)
		}
		time.Sleep(time.Millisecond)
	}
}

// receive takes what a goroutine of the test sends.
func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("nothing within %v", patience)
		panic("unreachable")
	}
}
