package device_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/device"
)

func TestValidate(t *testing.T) {
	h := newHandler(t, &device.Handler{})
	long := strings.Repeat("n", 64)
	for _, c := range []struct {
		name     string
		versions []string
		ok       bool
	}{
		{"example.com/gadget", []string{"v1beta1"}, true},
		{"a.b-c.d/X_y.z-1", []string{"v1alpha1", "v1beta1"}, true},
		{strings.Repeat("d", 244) + "/n", []string{"v1beta1"}, true},
		{strings.Repeat("d", 245) + "/n", []string{"v1beta1"}, false},
		{"example.com/" + long[:63], []string{"v1beta1"}, true},
		{"example.com/" + long, []string{"v1beta1"}, false},
		{"example.com/gadget", nil, false},
		{"example.com/gadget", []string{"v1alpha1"}, false},
		{"gadget", []string{"v1beta1"}, false},
		{"", []string{"v1beta1"}, false},
		{"/gadget", []string{"v1beta1"}, false},
		{"example.com/", []string{"v1beta1"}, false},
		{"example.com/a/b", []string{"v1beta1"}, false},
		{"Example.com/gadget", []string{"v1beta1"}, false},
		{"example..com/gadget", []string{"v1beta1"}, false},
		{"example.com/-gadget", []string{"v1beta1"}, false},
		{"example.com/gad get", []string{"v1beta1"}, false},
		{"kubernetes.io/gadget", []string{"v1beta1"}, false},
		{"sub.kubernetes.io/gadget", []string{"v1beta1"}, false},
		{"requests.example.com/gadget", []string{"v1beta1"}, false},
		{"../../gadget", []string{"v1beta1"}, false},
		{"example.com/gadget\n", []string{"v1beta1"}, false},
	} {
		if err := h.ValidatePlugin(c.name, "/none", c.versions); (err == nil) != c.ok {
			t.Errorf("%.40q with %q: %v, want it to be right: %t", c.name, c.versions, err, c.ok)
		}
		if !c.ok {
			if err := h.RegisterPlugin(c.name, "/none", c.versions, nil); err == nil || errors.Is(err, cache.ErrRetry) {
				t.Errorf("%.40q with %q is registered: %v", c.name, c.versions, err)
			}
		}
	}
}

func TestAllocate(t *testing.T) {
	r := newRig(t, newFake("a", "b", "c", "d"), &device.Handler{})
	if got, want := show(r.Handler), "a:healthy b:healthy c:healthy d:healthy"; got != want {
		t.Fatalf("devices are %s, want %s", got, want)
	}
	if nodes := devicesOf(r.Handler)[0].NUMANodes; !slices.Equal(nodes, []int64{0, 1}) {
		t.Errorf("NUMA nodes are %v", nodes)
	}
	first := r.give("one", 2, "b")
	if want := []string{"a", "b"}; !slices.Equal(first.Devices, want) || first.Owner != "one" || first.Resource != resource ||
		first.Time.IsZero() {
		t.Errorf("allocated is %+v, want %q", first, want)
	}
	want := device.Answer{
		Envs: map[string]string{"GADGETS": "a,b"}, Annotations: map[string]string{"a": "b"},
		Mounts: []device.Mount{
			{ContainerPath: "/c/a", HostPath: "/h/a", ReadOnly: true}, {ContainerPath: "/c/b", HostPath: "/h/b", ReadOnly: true},
		},
		Devices: []device.Node{
			{ContainerPath: "/dev/a", HostPath: "/dev/ha", Permissions: "rw"}, {ContainerPath: "/dev/b", HostPath: "/dev/hb", Permissions: "rw"},
		},
		CDIDevices: []string{"example.com/gadget=a", "example.com/gadget=b"},
	}
	if got := fmt.Sprint(first.Answer); got != fmt.Sprint(want) {
		t.Errorf("the answer is %s, want %v", got, want)
	}
	again := r.give("one", 2, "b")
	if fmt.Sprint(again) != fmt.Sprint(first) || r.called("Allocate") != 1 {
		t.Errorf("again it is %v, want %v, and the plugin to be asked once: %d", again, first, r.called("Allocate"))
	}
	maps.DeleteFunc(again.Answer.Envs, func(string, string) bool { return true })
	if len(allocationsOf(r.Handler)[0].Answer.Envs) != 1 {
		t.Error("what is returned is the handler's own")
	}
	r.refuses(device.ErrConflict, "one", 2)
	r.refuses(device.ErrConflict, "one", 3, "b")
	r.refuses(device.ErrInUse, "two", 0, "a")
	r.refuses(device.ErrNotFound, "two", 0, "z")
	r.refuses(device.ErrNotEnough, "two", 3)
	for _, q := range []device.Request{
		{Resource: resource}, {Resource: resource, Owner: "new\nline"}, {Resource: resource, Owner: strings.Repeat("o", 254)},
		{Resource: "gadget", Owner: "o"}, {Resource: resource, Owner: "o", Count: -1}, {Resource: resource, Owner: "o", Count: 1 << 30},
		{Resource: resource, Owner: "o", Count: 1, Devices: []string{"c", "d"}}, {Resource: resource, Owner: "o", Devices: []string{"c", "c"}},
		{Resource: resource, Owner: "o", Devices: []string{""}},
	} {
		if _, err := r.Handler.Allocate(t.Context(), q); !errors.Is(err, device.ErrInvalid) {
			t.Errorf("%+v: got %v, want %v", q, err, device.ErrInvalid)
		}
	}
	unknown := device.Request{Resource: "example.com/none", Owner: "o"}
	if _, err := r.Handler.Allocate(t.Context(), unknown); !errors.Is(err, device.ErrNotFound) {
		t.Errorf("an unknown resource: %v", err)
	}
	if second := r.give("two", 0, "d"); !slices.Equal(second.Devices, []string{"d"}) {
		t.Errorf("allocated is %v", second)
	}
	if got, want := show(r.Handler), "a:healthy:one b:healthy:one c:healthy d:healthy:two"; got != want {
		t.Errorf("devices are %s, want %s", got, want)
	}
	if all := allocationsOf(r.Handler); len(all) != 2 || all[0].Owner != "one" || all[1].Owner != "two" {
		t.Errorf("allocations are %+v", all)
	}
	released, err := r.Release(t.Context(), resource, "one")
	if err != nil || !slices.Equal(released.Devices, []string{"a", "b"}) {
		t.Errorf("released is %v, %v", released, err)
	}
	for _, c := range [][2]string{{resource, "one"}, {"example.com/none", "two"}} {
		if _, err := r.Release(t.Context(), c[0], c[1]); !errors.Is(err, device.ErrNotFound) {
			t.Errorf("release of %s: %v", c, err)
		}
	}
	r.give("three", 3)
}

// Calls for one owner at the same time are one allocation.
func TestSameOwnerAtOnce(t *testing.T) {
	r := newRig(t, newFake("a", "b", "c", "d", "e", "f", "g", "h"), &device.Handler{Store: newMemory()})
	var giving sync.WaitGroup
	got := make([]device.Allocation, 16)
	for i := range got {
		giving.Go(func() { got[i] = r.give(fmt.Sprint("owner ", i%4), 2) })
	}
	giving.Wait()
	for i := range got {
		if fmt.Sprint(got[i]) != fmt.Sprint(got[i%4]) {
			t.Errorf("one got %v and another %v", got[i], got[i%4])
		}
	}
	if n := r.called("Allocate"); n != 4 {
		t.Errorf("the plugin was asked %d times, want 4", n)
	}
}

func TestHealthIsLive(t *testing.T) {
	r := newRig(t, newFake("a", "b"), &device.Handler{})
	r.give("one", 0, "a")
	r.set("a", pluginapi.Unhealthy)
	eventually(t, r.Handler, "a:unhealthy:one b:healthy")
	r.set("b", "Whatever")
	eventually(t, r.Handler, "a:unhealthy:one b:unhealthy")
	r.refuses(device.ErrUnhealthy, "two", 0, "b")
	r.refuses(device.ErrNotEnough, "two", 1)
	r.set("a", "")
	eventually(t, r.Handler, "a:missing:one b:unhealthy")
	r.set("b", pluginapi.Healthy)
	eventually(t, r.Handler, "a:missing:one b:healthy")
	if _, err := r.Release(t.Context(), resource, "one"); err != nil {
		t.Error(err)
	}
	eventually(t, r.Handler, "b:healthy")
}

// The stream of lists is resumed when it breaks while the plugin lives, and also when its process was replaced behind the same socket.
func TestStreamIsResumed(t *testing.T) {
	f := newFake("a")
	broken := make(chan struct{})
	var streams int
	ordinary := newFake("a")
	f.list = func(stream pluginapi.DevicePlugin_ListAndWatchServer) error {
		f.mu.Lock()
		streams++
		n := streams
		f.mu.Unlock()
		if n == 1 {
			if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{{ID: "a", Health: "Healthy"}}}); err != nil {
				return err
			}
			<-broken
			return nil
		}
		if n < 4 {
			return status.Error(codes.Internal, "\x1b not now")
		}
		return ordinary.ListAndWatch(nil, stream)
	}
	r := newRig(t, f, &device.Handler{})
	r.give("one", 1)
	close(broken)
	eventually(t, r.Handler, "a:unavailable:one")
	r.refuses(device.ErrUnavailable, "two", 1)
	eventually(t, r.Handler, "a:healthy:one")

	r.stop()
	eventually(t, r.Handler, "a:unavailable:one")
	serveAt(t, r.socket, newFake("a", "b").register)
	eventually(t, r.Handler, "a:healthy:one b:healthy")
}

func TestPluginGoesAndComesBack(t *testing.T) {
	r := newRig(t, newFake("a", "b"), &device.Handler{})
	first := r.give("one", 0, "a")
	r.DeRegisterPlugin(resource)
	r.DeRegisterPlugin("example.com/none")
	eventually(t, r.Handler, "a:unavailable:one b:unavailable")
	r.refuses(device.ErrUnavailable, "two", 1)
	if again := r.give("one", 0, "a"); fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("without the plugin the allocation is %v, want %v", again, first)
	}
	r.must(r.reg())
	eventually(t, r.Handler, "a:healthy:one b:healthy")

	// A newer instance takes over; what it does not list stays allocated.
	newer := newFake("b", "c")
	socket := r.socket + "2"
	serveAt(t, socket, newer.register)
	r.must(r.RegisterPlugin(resource, socket, []string{"v1beta1"}, nil))
	r.InstanceGone(resource, r.socket)
	eventually(t, r.Handler, "a:missing:one b:healthy c:healthy")
	r.give("two", 0, "c")
	if newer.called("Allocate") != 1 {
		t.Error("the newer instance was not asked")
	}
	r.set("b", pluginapi.Unhealthy) // nobody listens to the older one
	r.must(r.reg())
	eventually(t, r.Handler, "a:healthy:one b:unhealthy c:missing:two")
}

func TestFailedRegisterLeavesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fake)
		retry  bool
	}{
		"no such service": {func(f *fake) {
			f.options = nil
			f.list = func(pluginapi.DevicePlugin_ListAndWatchServer) error {
				return status.Error(codes.Unimplemented, "what?")
			}
		}, false},
		"not yet": {func(f *fake) {
			f.list = func(pluginapi.DevicePlugin_ListAndWatchServer) error { return status.Error(codes.Unavailable, "later") }
		}, true},
		"too many": {func(f *fake) { f.set("e1", "Healthy"); f.set("e2", "Healthy"); f.set("e3", "Healthy") }, false},
		"long ID":  {func(f *fake) { f.set(strings.Repeat("x", 257), "Healthy") }, false},
		"no ID": {func(f *fake) {
			f.list = func(s pluginapi.DevicePlugin_ListAndWatchServer) error {
				return s.Send(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{{}}})
			}
		}, false},
		"escape in ID": {func(f *fake) { f.set("\x1b[31m", "Healthy") }, false},
		"many nodes": {func(f *fake) {
			f.list = func(s pluginapi.DevicePlugin_ListAndWatchServer) error {
				nodes := make([]*pluginapi.NUMANode, 65)
				for i := range nodes {
					nodes[i] = &pluginapi.NUMANode{}
				}
				return s.Send(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{{ID: "a", Topology: &pluginapi.TopologyInfo{Nodes: nodes}}}})
			}
		}, false},
		"huge": {func(f *fake) {
			f.list = func(s pluginapi.DevicePlugin_ListAndWatchServer) error {
				return s.Send(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{{ID: "a", Health: strings.Repeat("x", 5<<20)}}})
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, newFake("a", "b"), &device.Handler{MaxDevices: 4})
			r.give("one", 0, "a")
			bad := newFake("a", "b")
			c.change(bad)
			socket := r.socket + "2"
			serveAt(t, socket, bad.register)
			before := runtime.NumGoroutine()
			err := r.RegisterPlugin(resource, socket, []string{"v1beta1"}, nil)
			if err == nil || errors.Is(err, cache.ErrRetry) != c.retry || len(err.Error()) > 1000 || strings.ContainsRune(err.Error(), '\x1b') {
				t.Fatalf("got %v, want an error with retry: %t", err, c.retry)
			}
			// The older instance does not count any more either, until it is registered again.
			eventually(t, r.Handler, "a:unavailable:one b:unavailable")
			until(t, r.Handler, "its goroutines end", func() bool { return runtime.NumGoroutine() <= before },
				func() string { return fmt.Sprint(runtime.NumGoroutine(), " goroutines, and ", before, " before") })
			r.must(r.reg())
			eventually(t, r.Handler, "a:healthy:one b:healthy")
		})
	}
}

func TestRegisterIsInterrupted(t *testing.T) {
	f := newFake()
	silent := make(chan struct{})
	f.list = func(stream pluginapi.DevicePlugin_ListAndWatchServer) error {
		close(silent)
		<-stream.Context().Done()
		return nil
	}
	socket := filepath.Join(tempDir(t), "plugin.sock")
	serveAt(t, socket, f.register)
	h := newHandler(t, &device.Handler{ListTimeout: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-silent
		cancel()
	}()
	if _, err := h.RegisterPluginContext(ctx, resource, socket, []string{"v1beta1"}, nil); !errors.Is(err, cache.ErrRetry) {
		t.Errorf("got %v, want %v", err, cache.ErrRetry)
	}
	if got := devicesOf(h); len(got) != 0 {
		t.Errorf("devices are %v", got)
	}
}

func TestFailedAllocateFrees(t *testing.T) {
	refuse := func(context.Context, []string) (*pluginapi.AllocateResponse, error) {
		return nil, status.Error(codes.Internal, "\x1b no")
	}
	for name, c := range map[string]struct {
		change func(*fake)
		want   error
	}{
		"refused": {func(f *fake) { f.allocate = refuse }, device.ErrRefused},
		"not one answer": {func(f *fake) {
			f.allocate = func(context.Context, []string) (*pluginapi.AllocateResponse, error) {
				return &pluginapi.AllocateResponse{}, nil
			}
		}, device.ErrRefused},
		"huge answer": {func(f *fake) {
			f.allocate = func(context.Context, []string) (*pluginapi.AllocateResponse, error) {
				a := answer(nil)
				a.ContainerResponses[0].Envs["x"] = strings.Repeat("x", 1<<20)
				return a, nil
			}
		}, device.ErrRefused},
		"many entries": {func(f *fake) {
			f.allocate = func(context.Context, []string) (*pluginapi.AllocateResponse, error) {
				a := answer(nil)
				a.ContainerResponses[0].CdiDevices = slices.Repeat([]*pluginapi.CDIDevice{{}}, 5000)
				return a, nil
			}
		}, device.ErrRefused},
		"not prepared": {func(f *fake) {
			f.options.PreStartRequired = true
			f.prepare = func([]string) error { return errors.New("no") }
		}, device.ErrRefused},
		"gone": {func(f *fake) {
			f.allocate = func(context.Context, []string) (*pluginapi.AllocateResponse, error) {
				return nil, status.Error(codes.Unavailable, "going")
			}
		}, device.ErrUnavailable},
		"hangs": {func(f *fake) {
			f.allocate = func(ctx context.Context, _ []string) (*pluginapi.AllocateResponse, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		}, device.ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake("a", "b")
			c.change(f)
			r := newRig(t, f, &device.Handler{CallTimeout: 2 * time.Second, Store: newMemory()})
			r.refuses(c.want, "one", 2)
			if got := show(r.Handler); got != "a:healthy b:healthy" || len(allocationsOf(r.Handler)) != 0 {
				t.Errorf("devices are %s, allocations %v", got, allocationsOf(r.Handler))
			}
			if _, err := r.Release(t.Context(), resource, "one"); !errors.Is(err, device.ErrNotFound) {
				t.Errorf("release: %v", err)
			}
		})
	}
}

func TestPreferredAndPreStart(t *testing.T) {
	f := newFake("a", "b", "c", "d")
	f.options = &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}
	f.prefer = func(r *pluginapi.ContainerPreferredAllocationRequest) ([]string, error) {
		if want := []string{"a", "b", "c", "d"}; !slices.Equal(r.GetAvailableDeviceIDs(), want) || r.GetAllocationSize() != 2 {
			return nil, fmt.Errorf("got %v", r)
		}
		return []string{"nonsense", "d", "d", "c", "b"}, nil
	}
	r := &rig{fake: f, t: t, socket: filepath.Join(tempDir(t), "plugin.sock")}
	r.stop = serveAt(t, r.socket, f.register)
	r.Handler = newHandler(t, &device.Handler{})
	registration, err := r.RegisterPluginContext(t.Context(), resource, r.socket, []string{"v1beta1"}, nil)
	r.must(err)
	if want := map[string]string{device.KeyPreStart: "true", device.KeyPreferred: "true"}; !registration.WatchEndpoint ||
		!maps.Equal(registration.Details, want) {
		t.Errorf("the registration is %+v", registration)
	}
	preferred, err := r.Preferred(t.Context(), device.Request{Resource: resource, Count: 2})
	if err != nil || !slices.Equal(preferred, []string{"c", "d"}) {
		t.Errorf("preferred are %v, %v", preferred, err)
	}
	if got := r.give("one", 2).Devices; !slices.Equal(got, []string{"c", "d"}) {
		t.Errorf("allocated are %v", got)
	}
	// Each start of the owner begins with Allocate, which has the devices prepared.
	r.give("one", 2)
	if n := f.called("PreStartContainer c,d"); n != 2 {
		t.Errorf("devices were prepared %d times, want 2", n)
	}
	// Preferences are advice: without them the order of IDs counts, and so it does when the plugin cannot say.
	if got := r.give("two", 2).Devices; !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("allocated are %v", got)
	}
	if _, err := r.Preferred(t.Context(), device.Request{Resource: resource}); !errors.Is(err, device.ErrNotEnough) {
		t.Errorf("preferred of none: %v", err)
	}
	r.DeRegisterPlugin(resource)
	r.refuses(device.ErrUnavailable, "one", 2)
	if _, err := r.Preferred(t.Context(), device.Request{Resource: resource}); !errors.Is(err, device.ErrUnavailable) {
		t.Errorf("preferred of one that is gone: %v", err)
	}
}

func TestResourcesAreBounded(t *testing.T) {
	r := newRig(t, newFake("a"), &device.Handler{MaxResources: 3})
	r.give("one", 1)
	reg := func(name string) error { return r.RegisterPlugin(name, r.socket, []string{"v1beta1"}, nil) }
	r.must(reg("example.com/b"))
	r.must(reg("example.com/c"))
	if err := reg("example.com/d"); err == nil || !strings.Contains(err.Error(), "not allowed") {
		t.Errorf("one too many: %v", err)
	}
	r.DeRegisterPlugin("example.com/c")
	r.DeRegisterPlugin(resource)
	r.must(reg("example.com/d"))
	if all := devicesOf(r.Handler); len(all) != 3 || all[2].Resource != resource || all[2].Owner != "one" {
		t.Errorf("devices are %+v, want that with an owner to be kept", all)
	}
	r.DeRegisterPlugin("example.com/d")
	r.MaxResources = 1 // as with allocations that were made with a greater limit
	r.must(reg(resource))
}
