package csi_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/handlers/csi"
	"github.com/patchbay-dev/patchbay/plugin"
)

// registrar registers a driver at another endpoint, as the node driver registrar does.
type registrar struct {
	registerapi.UnimplementedRegistrationServer
	name, endpoint string
	versions       []string
	told           chan *registerapi.RegistrationStatus
}

func (r *registrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: r.name, Endpoint: r.endpoint, SupportedVersions: r.versions,
	}, nil
}

func (r *registrar) NotifyRegistrationStatus(
	_ context.Context, s *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	select {
	case r.told <- s:
	default:
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// host is a runtime with the handler.
type host struct {
	t          *testing.T
	ready      time.Duration // the handler's ReadyTimeout
	dir, state string
	rt         *patchbay.Runtime
	events     <-chan plugin.Event
	end        func()
}

func newHost(t *testing.T) *host {
	return newPatientHost(t, time.Second)
}

// newPatientHost returns a host whose handler waits for a driver to become ready.
func newPatientHost(t *testing.T, ready time.Duration) *host {
	h := &host{t: t, ready: ready, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state.db")}
	h.start()
	t.Cleanup(func() { h.end() })
	return h
}

func (h *host) start() {
	h.t.Helper()
	store, err := boltstate.Open(h.state)
	if err != nil {
		h.t.Fatal(err)
	}
	h.rt, err = patchbay.New(patchbay.Config{PluginDirs: []string{h.dir}, State: store, RegistryOptions: csi.Dispensers(nil)})
	if err != nil {
		h.t.Fatal(err)
	}
	h.rt.AddHandler(registerapi.CSIPlugin, csi.NewHandler(csi.Options{ReadyTimeout: h.ready}))
	ctx, cancel := context.WithCancel(context.Background())
	h.events = h.rt.Events(ctx, 0)
	ended := make(chan error, 1)
	go func() { ended <- h.rt.Run(ctx) }()
	h.end = func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("Run: %v", err)
		}
		if err := store.Close(); err != nil {
			h.t.Errorf("Close: %v", err)
		}
		h.end = func() {}
	}
}

// register starts a registrar, whose socket has a name of its own.
func (h *host) register(file string, driver *server) (*registrar, *server) {
	h.t.Helper()
	r := &registrar{
		name: driverName, endpoint: driver.socket, versions: []string{"1.0.0"}, told: make(chan *registerapi.RegistrationStatus, 16),
	}
	return r, serveAt(h.t, filepath.Join(h.dir, file), func(s grpc.ServiceRegistrar) { registerapi.RegisterRegistrationServer(s, r) })
}

// await waits for an event of the driver and passes over others.
func (h *host) await(kind plugin.EventKind) plugin.Event {
	h.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case e, ok := <-h.events:
			if !ok {
				h.t.Fatalf("the events ended before %s", kind)
			}
			if e.Kind == kind && e.Name == driverName {
				return e
			}
		case <-deadline:
			h.t.Fatalf("no event %s; plugins: %+v", kind, h.rt.Plugins())
		}
	}
}

// registered waits until a registrar is told that its driver is registered.
func (h *host) registered(r *registrar) {
	h.t.Helper()
	select {
	case s := <-r.told:
		if !s.GetPluginRegistered() {
			h.t.Fatalf("the registrar was told: %s", s.GetError())
		}
	case <-time.After(patience):
		h.t.Fatalf("the registrar was told nothing; plugins: %+v", h.rt.Plugins())
	}
	h.await(plugin.EventRegistered)
}

// types returns the types under which the driver is registered.
func (h *host) types() []string {
	var types []string
	for _, ptype := range []string{"CSIPlugin", "csi-controller", "csi-node"} {
		if _, err := h.rt.Registry().DispensePlugin(ptype, driverName); err == nil {
			types = append(types, ptype)
		}
	}
	return types
}

// nodeID asks the driver for what it calls this node.
func (h *host) nodeID() (string, error) {
	client, err := dynamicplugins.Dispense[csipb.NodeClient](h.rt.Registry(), "csi-node", driverName)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	info, err := client.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
	return info.GetNodeId(), err
}

// TestDriverDiesBehindItsRegistrar: the registrar lives on, and it is noticed all the same; when the driver is back, so is the plugin.
func TestDriverDiesBehindItsRegistrar(t *testing.T) {
	h := newHost(t)
	socket := filepath.Join(t.TempDir(), "csi.sock")
	kill := startProcess(t, socket)
	r, _ := h.register("reg.sock", &server{socket: socket})
	h.registered(r)
	all := []string{"CSIPlugin", "csi-controller", "csi-node"}
	if got := h.types(); !slices.Equal(got, all) {
		t.Fatalf("registered as %v", got)
	}
	for round := range 3 {
		if id, err := h.nodeID(); err != nil || id != "node-7" {
			t.Fatalf("round %d: node ID %q, %v", round, id, err)
		}
		kill()
		if e := h.await(plugin.EventUnreachable); !strings.Contains(e.Message, socket) {
			t.Errorf("the event does not name the endpoint: %s", e.Message)
		}
		h.await(plugin.EventDeregistered)
		if got := h.types(); got != nil {
			t.Fatalf("round %d: still dispensed: %v", round, got)
		}
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
		kill = startProcess(t, socket)
		h.registered(r)
		if got := h.types(); !slices.Equal(got, all) {
			t.Fatalf("round %d: registered again as %v", round, got)
		}
	}
}

// TestUpgrade: a second instance takes over, and there is no moment without a node.
func TestUpgrade(t *testing.T) {
	h := newHost(t)
	old, oldReg := h.register("0.sock", serve(t, newFake()))
	h.registered(old)

	stop := make(chan struct{})
	failed := make(chan error, 1)
	var calls atomic.Int64
	go func() {
		defer close(failed)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := h.nodeID(); err != nil {
				failed <- err
				return
			}
			calls.Add(1)
		}
	}()
	for _, file := range []string{"1.sock", "2.sock", "3.sock"} {
		f := newFake()
		node(file, 0, nil)(f)
		next, nextReg := h.register(file, serve(t, f))
		h.registered(next)
		if id, err := h.nodeID(); err != nil || id != file {
			t.Errorf("after the upgrade to %s: node ID %q, %v", file, id, err)
		}
		seen := calls.Load()
		oldReg.kill()
		if err := os.Remove(oldReg.socket); err != nil {
			t.Fatal(err)
		}
		oldReg = nextReg
		eventually(t, "calls go on", func() bool { return calls.Load() > seen+10 || len(failed) > 0 })
	}
	close(stop)
	if err := <-failed; err != nil {
		t.Errorf("a call failed: %v", err)
	}
	info, err := h.rt.Registry().WaitForPlugin(t.Context(), "csi-node", driverName)
	if n, ok := csi.NodeInfoOf(info); err != nil || !ok || n.NodeID != "3.sock" {
		t.Errorf("node info %+v, %v, %v", n, ok, err)
	}
}

// TestControllerAlone: a driver without a node is no csi-node.
func TestControllerAlone(t *testing.T) {
	h := newHost(t)
	f := newFake()
	nodeError(codes.Unimplemented)(f)
	f.nodeCaps = func(context.Context) (*csipb.NodeGetCapabilitiesResponse, error) {
		return nil, status.Error(codes.Unimplemented, "no")
	}
	r, _ := h.register("reg.sock", serve(t, f))
	h.registered(r)
	if got := h.types(); !slices.Equal(got, []string{"CSIPlugin", "csi-controller"}) {
		t.Errorf("registered as %v", got)
	}
	if _, err := h.rt.Registry().DispensePlugin("csi-node", driverName); !errors.Is(err, dynamicplugins.ErrNotFound) {
		t.Errorf("csi-node: %v", err)
	}
}

// TestCapabilityChanges: a driver that comes back as less is registered as less, and one as more as more.
func TestCapabilityChanges(t *testing.T) {
	h := newHost(t)
	var controller atomic.Bool
	controller.Store(true)
	f := newFake()
	both := f.capabilities
	f.capabilities = func(ctx context.Context) (*csipb.GetPluginCapabilitiesResponse, error) {
		if controller.Load() {
			return both(ctx)
		}
		return &csipb.GetPluginCapabilitiesResponse{}, nil
	}
	driver := serve(t, f)
	r, reg := h.register("reg.sock", driver)
	h.registered(r)
	for _, has := range []bool{false, true, false} {
		controller.Store(has)
		want := []string{"CSIPlugin", "csi-node"}
		if has {
			want = []string{"CSIPlugin", "csi-controller", "csi-node"}
		}
		// The registrar starts again.
		reg.kill()
		if err := os.Remove(reg.socket); err != nil {
			t.Fatal(err)
		}
		r, reg = h.register("reg.sock", driver)
		h.registered(r)
		// The instance that it replaces goes at once, and with it what only that one was.
		eventually(t, fmt.Sprintf("registered as %v", want), func() bool { return slices.Equal(h.types(), want) })
	}
}

// TestNotToldOff: a driver that is not ready yet is waited for, and its registrar hears nothing before.
func TestNotToldOff(t *testing.T) {
	h := newHost(t)
	var ready atomic.Bool
	f := newFake()
	f.probe = func(context.Context) (*csipb.ProbeResponse, error) {
		return &csipb.ProbeResponse{Ready: wrapperspb.Bool(ready.Load())}, nil
	}
	r, _ := h.register("reg.sock", serve(t, f))
	e := h.await(plugin.EventFailed)
	if !strings.Contains(e.Message, "not ready within 1s: it says that it is not ready") {
		t.Errorf("event %s", e.Message)
	}
	if len(r.told) > 0 {
		t.Errorf("told %v", <-r.told)
	}
	ready.Store(true)
	h.registered(r)
}

// TestNotToldOffForItsNode: a driver that cannot say at first what its node is, as during a boot, is waited for as one that is not ready.
func TestNotToldOffForItsNode(t *testing.T) {
	h := newPatientHost(t, patience)
	f := newFake()
	answer := f.nodeInfo
	var asked atomic.Int32
	f.nodeInfo = func(ctx context.Context) (*csipb.NodeGetInfoResponse, error) {
		switch asked.Add(1) {
		case 1:
			return nil, status.Error(codes.Internal, "the node is not known to the controller yet")
		case 2:
			return nil, errors.New("no such host")
		}
		return answer(ctx)
	}
	r, _ := h.register("reg.sock", serve(t, f))
	h.registered(r)
	if n := asked.Load(); n != 3 {
		t.Errorf("the driver was asked %d times, want 3", n)
	}
}

// TestToldWhy: a driver that is wrong is told what is wrong, and is not registered.
func TestToldWhy(t *testing.T) {
	h := newHost(t)
	f := newFake()
	named("other.example.com")(f)
	r, _ := h.register("reg.sock", serve(t, f))
	select {
	case s := <-r.told:
		if s.GetPluginRegistered() || !strings.Contains(s.GetError(), `own name is "other.example.com"`) {
			t.Errorf("told %v", s)
		}
	case <-time.After(patience):
		t.Fatal("told nothing")
	}
	if got := h.types(); got != nil {
		t.Errorf("registered as %v", got)
	}
}

// TestRemembered: after a restart of the host everything is as it was, at once and after the driver was asked again.
func TestRemembered(t *testing.T) {
	h := newHost(t)
	r, _ := h.register("reg.sock", serve(t, newFake()))
	h.registered(r)
	h.end()
	h.start()
	if id, err := h.nodeID(); err != nil || id != "node-7" {
		t.Errorf("before it is asked again: node ID %q, %v", id, err)
	}
	h.remembers()
	h.await(plugin.EventRegistered)
	h.remembers()
}

// remembers makes sure that the registry has what the driver said.
func (h *host) remembers() {
	h.t.Helper()
	infos := h.rt.Registry().ListPlugins("csi-node")
	if len(infos) != 1 {
		h.t.Fatalf("%d nodes", len(infos))
	}
	if n, ok := csi.NodeInfoOf(infos[0]); !ok || n.NodeID != "node-7" || n.Topology["rack"] != "r_2" || infos[0].Version != "v3.2.1" {
		h.t.Errorf("node info %+v, %v; version %s", n, ok, infos[0].Version)
	}
}
