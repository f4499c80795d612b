package device_test

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/patchbay-dev/patchbay/handlers/device"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

// patience is how long a test waits for what should happen at once before it fails.
const patience = 2 * time.Minute

const resource = "example.com/gadget"

func TestMain(m *testing.M) { leaktest.Main(m) }

// fake is a device plugin. What is nil in it has the behaviour of an ordinary one.
type fake struct {
	pluginapi.UnimplementedDevicePluginServer

	options  *pluginapi.DevicePluginOptions // nil: it has no such method
	list     func(pluginapi.DevicePlugin_ListAndWatchServer) error
	allocate func(context.Context, []string) (*pluginapi.AllocateResponse, error)
	prefer   func(*pluginapi.ContainerPreferredAllocationRequest) ([]string, error)
	asked    func(ctx context.Context) // before prefer
	prepare  func([]string) error

	mu      sync.Mutex
	devices map[string]string // health by ID
	changed chan struct{}
	calls   []string
}

// newFake returns a plugin with healthy devices.
func newFake(ids ...string) *fake {
	f := &fake{options: &pluginapi.DevicePluginOptions{}, devices: map[string]string{}, changed: make(chan struct{})}
	for _, id := range ids {
		f.devices[id] = pluginapi.Healthy
	}
	return f
}

// set changes the health of a device, or removes it if health is empty, and sends the list.
func (f *fake) set(id, health string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if health == "" {
		delete(f.devices, id)
	} else {
		f.devices[id] = health
	}
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fake) called(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, c := range f.calls {
		if strings.HasPrefix(c, method) {
			n++
		}
	}
	return n
}

func (f *fake) record(call string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
}

func (f *fake) GetDevicePluginOptions(ctx context.Context, e *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	if f.options == nil {
		return f.UnimplementedDevicePluginServer.GetDevicePluginOptions(ctx, e)
	}
	return f.options, nil
}

func (f *fake) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	if f.list != nil {
		return f.list(stream)
	}
	f.record("ListAndWatch")
	for {
		f.mu.Lock()
		response := &pluginapi.ListAndWatchResponse{}
		for _, id := range slices.Sorted(maps.Keys(f.devices)) {
			response.Devices = append(response.Devices, &pluginapi.Device{
				ID: id, Health: f.devices[id], Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 1}, {ID: 0}}},
			})
		}
		changed := f.changed
		f.mu.Unlock()
		if err := stream.Send(response); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (f *fake) Allocate(ctx context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	ids := r.GetContainerRequests()[0].GetDevicesIds()
	f.record("Allocate " + strings.Join(ids, ","))
	if f.allocate != nil {
		return f.allocate(ctx, ids)
	}
	return answer(ids), nil
}

func answer(ids []string) *pluginapi.AllocateResponse {
	a := &pluginapi.ContainerAllocateResponse{
		Envs: map[string]string{"GADGETS": strings.Join(ids, ",")}, Annotations: map[string]string{"a": "b"},
	}
	for _, id := range ids {
		a.Mounts = append(a.Mounts, &pluginapi.Mount{ContainerPath: "/c/" + id, HostPath: "/h/" + id, ReadOnly: true})
		a.Devices = append(a.Devices, &pluginapi.DeviceSpec{ContainerPath: "/dev/" + id, HostPath: "/dev/h" + id, Permissions: "rw"})
		a.CdiDevices = append(a.CdiDevices, &pluginapi.CDIDevice{Name: "example.com/gadget=" + id})
	}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{a}}
}

func (f *fake) GetPreferredAllocation(
	ctx context.Context, r *pluginapi.PreferredAllocationRequest,
) (*pluginapi.PreferredAllocationResponse, error) {
	f.record("GetPreferredAllocation")
	if f.asked != nil {
		f.asked(ctx)
	}
	ids, err := f.prefer(r.GetContainerRequests()[0])
	return &pluginapi.PreferredAllocationResponse{
		ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{{DeviceIDs: ids}},
	}, err
}

func (f *fake) PreStartContainer(
	_ context.Context, r *pluginapi.PreStartContainerRequest,
) (*pluginapi.PreStartContainerResponse, error) {
	f.record("PreStartContainer " + strings.Join(r.GetDevicesIds(), ","))
	if f.prepare != nil {
		return &pluginapi.PreStartContainerResponse{}, f.prepare(r.GetDevicesIds())
	}
	return &pluginapi.PreStartContainerResponse{}, nil
}

// serveAt serves on a socket until stop is called or the test ends. Like SIGKILL, the end leaves the socket.
func serveAt(t testing.TB, socket string, register ...func(grpc.ServiceRegistrar)) (stop func()) {
	t.Helper()
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	g := grpc.NewServer()
	for _, r := range register {
		r(g)
	}
	var served sync.WaitGroup
	served.Go(func() { _ = g.Serve(listener) }) // ends with Stop
	stop = func() {
		g.Stop()
		served.Wait()
	}
	t.Cleanup(stop)
	return stop
}

func (f *fake) register(s grpc.ServiceRegistrar) { pluginapi.RegisterDevicePluginServer(s, f) }

// tempDir returns a directory with a short path.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// rig is a handler with one plugin.
type rig struct {
	*device.Handler
	*fake
	t      *testing.T
	socket string
	stop   func() // ends the plugin
}

func newHandler(t *testing.T, h *device.Handler) *device.Handler {
	t.Helper()
	if err := h.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// newRig serves a plugin and registers it.
func newRig(t *testing.T, f *fake, h *device.Handler) *rig {
	t.Helper()
	r := &rig{fake: f, t: t, socket: filepath.Join(tempDir(t), "plugin.sock")}
	r.stop = serveAt(t, r.socket, f.register)
	r.Handler = newHandler(t, h)
	r.must(r.reg())
	return r
}

func (r *rig) reg() error { return r.RegisterPlugin(resource, r.socket, []string{"v1beta1"}, nil) }

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// give allocates and has to succeed.
func (r *rig) give(owner string, count int, ids ...string) device.Allocation {
	r.t.Helper()
	a, err := r.Handler.Allocate(r.t.Context(), device.Request{Resource: resource, Owner: owner, Count: count, Devices: ids})
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

// refuses allocates and has to fail with an error.
func (r *rig) refuses(want error, owner string, count int, ids ...string) {
	r.t.Helper()
	a, err := r.Handler.Allocate(r.t.Context(), device.Request{Resource: resource, Owner: owner, Count: count, Devices: ids})
	if !errors.Is(err, want) {
		r.t.Errorf("allocating %d %q for %s: got %v, %v, want %v", count, ids, owner, a, err, want)
	}
}

func devicesOf(h *device.Handler) []device.Device {
	devices, _ := h.Snapshot()
	return devices
}

func allocationsOf(h *device.Handler) []device.Allocation {
	_, allocations := h.Snapshot()
	return allocations
}

// show writes devices as ID:health:owner.
func show(h *device.Handler) string {
	var all []string
	for _, d := range devicesOf(h) {
		s := d.ID + ":" + string(d.Health)
		if d.Owner != "" {
			s += ":" + d.Owner
		}
		all = append(all, s)
	}
	return strings.Join(all, " ")
}

// eventually waits until the devices are as wanted.
func eventually(t *testing.T, h *device.Handler, want string) {
	t.Helper()
	until(t, h, "devices are "+want, func() bool { return show(h) == want }, func() string { return show(h) })
}

// until waits until something holds, which may change whenever the handler's devices do.
func until(t *testing.T, h *device.Handler, what string, holds func() bool, is func() string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		changed := h.Changed()
		if holds() {
			return
		}
		tick := time.NewTimer(10 * time.Millisecond) // not everything that is waited for is a change of a device
		select {
		case <-changed:
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %v; it is %s", what, patience, is())
		}
		tick.Stop()
	}
}
