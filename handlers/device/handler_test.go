package device_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/handlers/device"
)

func TestValidate(t *testing.T) {
	h := newHandler(t, device.Config{})
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
	r := newRig(t, newFake("a", "b", "c", "d"), device.Config{})
	if got, want := show(r.Handler), "a:healthy b:healthy c:healthy d:healthy"; got != want {
		t.Fatalf("devices are %s, want %s", got, want)
	}
	if nodes := r.Devices()[0].NUMANodes; !slices.Equal(nodes, []int64{0, 1}) {
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
	if len(r.Allocations()[0].Answer.Envs) != 1 {
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
	if all := r.Allocations(); len(all) != 2 || all[0].Owner != "one" || all[1].Owner != "two" {
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
	r := newRig(t, newFake("a", "b", "c", "d", "e", "f", "g", "h"), device.Config{Store: newMemory()})
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
	r := newRig(t, newFake("a", "b"), device.Config{})
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
	r := newRig(t, f, device.Config{})
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
	r := newRig(t, newFake("a", "b"), device.Config{})
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
			r := newRig(t, newFake("a", "b"), device.Config{MaxDevices: 4})
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
	h := newHandler(t, device.Config{ListTimeout: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-silent
		cancel()
	}()
	if _, err := h.RegisterPluginContext(ctx, resource, socket, []string{"v1beta1"}, nil); !errors.Is(err, cache.ErrRetry) {
		t.Errorf("got %v, want %v", err, cache.ErrRetry)
	}
	if got := h.Devices(); len(got) != 0 {
		t.Errorf("devices are %v", got)
	}
}

// A plugin that sends no list is registered, without devices, and those show when it does.
func TestFirstListIsLate(t *testing.T) {
	f := newFake("a")
	late := make(chan struct{})
	f.list = func(stream pluginapi.DevicePlugin_ListAndWatchServer) error {
		<-late
		return newFake("a").ListAndWatch(nil, stream)
	}
	r := newRig(t, f, device.Config{ListTimeout: time.Millisecond})
	r.refuses(device.ErrUnavailable, "one", 1)
	close(late)
	eventually(t, r.Handler, "a:healthy")
}

// Why there still is no list after a plugin was registered without one is said once for each reason, and not for each attempt.
func TestFirstListIsLateAndWrong(t *testing.T) {
	f := newFake()
	late, attempts := make(chan struct{}), make(chan int, 1)
	attempts <- 0
	f.list = func(stream pluginapi.DevicePlugin_ListAndWatchServer) error {
		<-late
		n := <-attempts + 1
		attempts <- n
		if n > 6 {
			return newFake("a").ListAndWatch(nil, stream)
		}
		return stream.Send(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{{ID: strings.Repeat("\x00", n/4)}}})
	}
	var log bytes.Buffer
	h := newHandler(t, device.Config{ListTimeout: time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	socket := filepath.Join(tempDir(t), "plugin.sock")
	serveAt(t, socket, f.register)
	if err := h.RegisterPlugin(resource, socket, []string{"v1beta1"}, nil); err != nil {
		t.Fatal(err)
	}
	close(late)
	eventually(t, h, "a:healthy")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "is not up to date"); n != 2 {
		t.Errorf("the lack of a list is said %d times, want 2:\n%s", n, &log)
	}
}

// A plugin that never stops sending lists is slowed down, and the last list is seen.
func TestEndlessLists(t *testing.T) {
	f := newFake()
	sent := 0
	f.list = func(stream pluginapi.DevicePlugin_ListAndWatchServer) error {
		for {
			list := &pluginapi.ListAndWatchResponse{}
			for i := range 1000 {
				id := fmt.Sprintf("%d-%d-%s", sent, i, strings.Repeat("x", 100))
				list.Devices = append(list.Devices, &pluginapi.Device{ID: id, Health: "Healthy"})
			}
			if err := stream.Send(list); err != nil {
				return err
			}
			sent++
		}
	}
	began := time.Now()
	r := newRig(t, f, device.Config{})
	taken := func() (n int) {
		if devices := r.Devices(); len(devices) > 0 {
			_, _ = fmt.Sscanf(devices[0].ID, "%d-", &n) // 0 if it is malformed
		}
		return n
	}
	until(t, r.Handler, "some lists are taken", func() bool { return taken() > 70 }, func() string { return fmt.Sprint(taken()) })
	// 50 may come at once, and 50 more each second.
	if n := taken(); n > 51+int(time.Since(began)/(20*time.Millisecond)) {
		t.Errorf("list number %d is taken after %v", n, time.Since(began))
	}
	if n := len(r.Devices()); n != 1000 {
		t.Errorf("%d devices are known, want those of one list", n)
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
			r := newRig(t, f, device.Config{CallTimeout: 2 * time.Second, Store: newMemory()})
			r.refuses(c.want, "one", 2)
			if got := show(r.Handler); got != "a:healthy b:healthy" || len(r.Allocations()) != 0 {
				t.Errorf("devices are %s, allocations %v", got, r.Allocations())
			}
			if _, err := r.Release(t.Context(), resource, "one"); !errors.Is(err, device.ErrNotFound) {
				t.Errorf("release: %v", err)
			}
		})
	}
}

// No lock is held over a call to the plugin, and a caller can give up.
func TestCallsDoNotBlockOthers(t *testing.T) {
	f := newFake("a", "b", "c")
	called := make(chan struct{})
	f.allocate = func(ctx context.Context, ids []string) (*pluginapi.AllocateResponse, error) {
		if ids[0] == "a" {
			close(called)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return answer(ids), nil
	}
	r := newRig(t, f, device.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	var stuck sync.WaitGroup
	stuck.Go(func() {
		if _, err := r.Handler.Allocate(ctx, device.Request{Resource: resource, Owner: "one"}); !errors.Is(err, context.Canceled) {
			t.Errorf("the one that was given up: %v", err)
		}
	})
	<-called
	if got, want := show(r.Handler), "a:healthy:one b:healthy c:healthy"; got != want {
		t.Errorf("devices are %s, want %s", got, want)
	}
	if got := r.Allocations(); len(got) != 0 {
		t.Errorf("what is not given yet is an allocation: %v", got)
	}
	r.give("two", 1)
	waiting, give := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer give()
	if _, err := r.Handler.Allocate(waiting, device.Request{Resource: resource, Owner: "one"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second call for the same owner: %v", err)
	}
	if _, err := r.Release(waiting, resource, "one"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a release meanwhile: %v", err)
	}
	// The plugin can be replaced meanwhile; the call goes on.
	socket := r.socket + "2"
	serveAt(t, socket, newFake("a", "b", "c").register)
	r.must(r.RegisterPlugin(resource, socket, []string{"v1beta1"}, nil))
	cancel()
	stuck.Wait()
	eventually(t, r.Handler, "a:healthy b:healthy:two c:healthy")
}

// A call that runs while its plugin is replaced goes on.
func TestCallOutlivesItsPlugin(t *testing.T) {
	f := newFake("a")
	called, finish := make(chan struct{}), make(chan struct{})
	f.allocate = func(_ context.Context, ids []string) (*pluginapi.AllocateResponse, error) {
		close(called)
		<-finish
		return answer(ids), nil
	}
	r := newRig(t, f, device.Config{})
	var giving sync.WaitGroup
	giving.Go(func() {
		if a, err := r.Handler.Allocate(t.Context(), device.Request{Resource: resource, Owner: "one"}); err != nil || len(a.Devices) != 1 {
			t.Errorf("got %v, %v", a, err)
		}
	})
	<-called
	socket := r.socket + "2"
	serveAt(t, socket, newFake("a").register)
	r.must(r.RegisterPlugin(resource, socket, []string{"v1beta1"}, nil))
	eventually(t, r.Handler, "a:healthy:one")
	<-time.After(50 * time.Millisecond) // were the connection closed, it would be by now
	close(finish)
	giving.Wait()
}

func TestCloseTells(t *testing.T) {
	r := newRig(t, newFake("a"), device.Config{})
	changed := r.Changed()
	r.must(r.Close())
	select {
	case <-changed:
	default:
		t.Error("nobody is told that the devices are unavailable now")
	}
	eventually(t, r.Handler, "a:unavailable")
}

func TestCloseEndsCalls(t *testing.T) {
	f := newFake("a")
	called := make(chan struct{})
	f.allocate = func(ctx context.Context, _ []string) (*pluginapi.AllocateResponse, error) {
		close(called)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	r := newRig(t, f, device.Config{})
	ended := make(chan error)
	go func() {
		_, err := r.Handler.Allocate(context.Background(), device.Request{Resource: resource, Owner: "one"})
		ended <- err
	}()
	<-called
	r.must(r.Close())
	if err := <-ended; !errors.Is(err, device.ErrClosed) {
		t.Errorf("the call that was running: %v", err)
	}
	r.refuses(device.ErrClosed, "one", 1)
	if err := r.reg(); !errors.Is(err, device.ErrClosed) || !errors.Is(err, cache.ErrRetry) {
		t.Errorf("register: %v", err)
	}
	r.DeRegisterPlugin(resource)
	r.InstanceGone(resource, r.socket)
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
	r.Handler = newHandler(t, device.Config{})
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
	r := newRig(t, newFake("a"), device.Config{MaxResources: 3})
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
	if all := r.Devices(); len(all) != 3 || all[2].Resource != resource || all[2].Owner != "one" {
		t.Errorf("devices are %+v, want that with an owner to be kept", all)
	}
}

func openState(t *testing.T, path string) *boltstate.Store {
	t.Helper()
	s, err := boltstate.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // a second time, mostly
	return s
}

func TestAllocationsOutliveTheProcess(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state.db")
	s := openState(t, state)
	r := newRig(t, newFake("a", "b"), device.Config{Store: s.Bucket("device")})
	first := r.give("one", 0, "b")
	r.must(errors.Join(r.Close(), s.Close()))

	s = openState(t, state)
	r.Handler = newHandler(t, device.Config{Store: s.Bucket("device")})
	eventually(t, r.Handler, "b:unavailable:one")
	if again := r.give("one", 0, "b"); fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("after a restart the allocation is %v, want %v", again, first)
	}
	r.refuses(device.ErrConflict, "one", 1)
	r.must(r.reg())
	eventually(t, r.Handler, "a:healthy b:healthy:one")
	r.refuses(device.ErrInUse, "two", 0, "b")
	if _, err := r.Release(t.Context(), resource, "one"); err != nil {
		t.Fatal(err)
	}
	r.must(errors.Join(r.Close(), s.Close()))

	s = openState(t, state)
	if got := newHandler(t, device.Config{Store: s.Bucket("device")}).Allocations(); len(got) != 0 {
		t.Errorf("what was released is back: %v", got)
	}
}

func TestDamagedRecords(t *testing.T) {
	good := `{"resource":"example.com/gadget","owner":"o","count":1,"devices":["a"]}`
	for name, records := range map[string]map[string]string{
		"no JSON":       {"allocation/example.com/gadget o": "{"},
		"another's":     {"allocation/example.com/gadget p": good},
		"no devices":    {"allocation/example.com/gadget o": `{"resource":"example.com/gadget","owner":"o"}`},
		"device twice":  {"allocation/example.com/gadget o": good, "allocation/example.com/gadget p": strings.Replace(good, `"o"`, `"p"`, 1)},
		"unknown field": {"allocation/example.com/gadget o": strings.Replace(good, "{", `{"later":1,`, 1), "later/x": "y"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory()
			for k, v := range records {
				m.values[k] = []byte(v)
			}
			h, err := device.New(device.Config{Store: m})
			if name == "unknown field" {
				if err != nil || show(h) != "a:unavailable:o" {
					t.Fatalf("got %v", err)
				}
				if err := h.Close(); err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), "is damaged") {
				t.Errorf("got %v, want that a record is damaged", err)
			}
		})
	}
}

// What may or may not have been saved is neither free nor given.
func TestSaveFails(t *testing.T) {
	m := newMemory()
	r := newRig(t, newFake("a", "b"), device.Config{Store: m})
	m.fail(true, false)
	r.refuses(errDisk, "one", 1)
	if got := show(r.Handler); got != "a:healthy b:healthy" {
		t.Errorf("after a save that failed devices are %s", got)
	}
	m.fail(true, true)
	r.refuses(errDisk, "one", 1)
	r.refuses(errDisk, "one", 1)
	if got := show(r.Handler); got != "a:healthy:one b:healthy" || len(r.Allocations()) != 0 {
		t.Errorf("in doubt devices are %s", got)
	}
	if _, err := r.Release(t.Context(), resource, "one"); !errors.Is(err, errDisk) {
		t.Errorf("release: %v", err)
	}
	r.refuses(device.ErrInUse, "two", 0, "a")
	m.fail(false, false)
	if got := r.give("one", 0, "b").Devices; !slices.Equal(got, []string{"b"}) {
		t.Errorf("allocated are %v", got)
	}
	m.fail(false, true)
	if _, err := r.Release(t.Context(), resource, "one"); !errors.Is(err, errDisk) {
		t.Errorf("release: %v", err)
	}
	r.refuses(device.ErrInUse, "two", 0, "b")
	m.fail(false, false)
	if _, err := r.Release(t.Context(), resource, "one"); err != nil {
		t.Error(err)
	}
	r.give("two", 2)
}

var errDisk = errors.New("disk is full")

// memory is a store that can fail.
type memory struct {
	mu                   sync.Mutex
	values               map[string][]byte
	failPut, failDelete  bool
	crashed, alsoApplies bool
}

func newMemory() *memory { return &memory{values: map[string][]byte{}} }

func (m *memory) fail(put, del bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failPut, m.failDelete = put, del
}

func (m *memory) Put(key string, value []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashed {
		return errDisk
	}
	if !m.failPut || m.alsoApplies {
		m.values[key] = slices.Clone(value)
	}
	if m.failPut {
		return errDisk
	}
	return nil
}

func (m *memory) Delete(key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashed {
		return errDisk
	}
	if !m.failDelete || m.alsoApplies {
		delete(m.values, key)
	}
	if m.failDelete {
		return errDisk
	}
	return nil
}

func (m *memory) ForEach(fn func(string, []byte) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(m.values)) {
		if err := fn(k, m.values[k]); err != nil {
			return err
		}
	}
	return nil
}
