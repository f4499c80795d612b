package device_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"pgregory.net/rapid"

	"github.com/patchbay-dev/patchbay/handlers/device"
)

// ledger is what owners know: from when an allocation is returned to them until they begin to release it, the devices are theirs.
type ledger struct {
	mu     sync.Mutex
	holder map[string]string // by device
	wrong  error
}

func (l *ledger) given(a device.Allocation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range a.Devices {
		if other := l.holder[id]; other != "" && other != a.Owner && l.wrong == nil {
			l.wrong = fmt.Errorf("device %s was given to %s while %s had it", id, a.Owner, other)
		}
		l.holder[id] = a.Owner
	}
}

func (l *ledger) released(owner string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, holder := range l.holder {
		if holder == owner {
			delete(l.holder, id)
		}
	}
}

// crash has the store fail from now on, as if the process had been killed, and returns one with what is on the disk. What the process does
// afterwards reaches nobody.
func (m *memory) crash() *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.crashed = true
	next := newMemory()
	for k, v := range m.values {
		next.values[k] = v
	}
	return next
}

func (m *memory) isCrashed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.crashed
}

// world is one host after the other, on one disk, with plugins that come, go and are replaced.
type world struct {
	t       *rapid.T
	ledger  ledger
	socket  string
	plugins []*fake

	mu      sync.RWMutex // held for reading while the host of the moment is used
	handler *device.Handler
	store   *memory
}

// TestNoDeviceIsGivenTwice: whatever happens at the same time, no device has two owners, and in the end what the owners have is what the
// handler says.
func TestNoDeviceIsGivenTwice(t *testing.T) {
	dir := tempDir(t)
	var sockets []string
	ids := []string{"a", "b", "c", "d"}
	var plugins []*fake
	for i := range 2 {
		f := newFake(ids...)
		f.options = &pluginapi.DevicePluginOptions{PreStartRequired: i == 0, GetPreferredAllocationAvailable: true}
		f.prefer = func(*pluginapi.ContainerPreferredAllocationRequest) ([]string, error) {
			return []string{"c", "b", "z"}, nil
		}
		var calls int
		f.allocate = func(_ context.Context, devices []string) (*pluginapi.AllocateResponse, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if calls++; calls%7 == 0 {
				return nil, status.Error(codes.Internal, "not this time")
			}
			return answer(devices), nil
		}
		sockets = append(sockets, filepath.Join(dir, fmt.Sprintf("%d.sock", i)))
		serveAt(t, sockets[i], f.register)
		plugins = append(plugins, f)
	}
	rapid.Check(t, func(rt *rapid.T) {
		for _, f := range plugins {
			for _, id := range ids {
				f.set(id, pluginapi.Healthy)
			}
		}
		w := &world{t: rt, ledger: ledger{holder: map[string]string{}}, socket: sockets[0], plugins: plugins, store: newMemory()}
		w.start(w.store)
		w.register(sockets[0])
		scripts := rapid.SliceOfN(rapid.SliceOfN(rapid.Custom(drawStep), 1, 12), 2, maxCallers).Draw(rt, "callers")
		var running sync.WaitGroup
		for i, script := range scripts {
			running.Go(func() {
				for _, s := range script {
					s.owner += fmt.Sprint(i) // what an owner does is in order
					w.do(s, sockets)
				}
			})
		}
		running.Wait()
		w.check(rt)
		w.handler.Close()
		if w.ledger.wrong != nil {
			rt.Fatal(w.ledger.wrong)
		}
	})
}

const maxCallers = 6

type step struct {
	what   string
	owner  string
	device string
	count  int
	plugin int
}

func drawStep(t *rapid.T) step {
	return step{
		what: rapid.SampledFrom([]string{
			"allocate", "allocate", "allocate", "allocate", "release", "release", "health", "register", "deregister", "fail", "crash", "close",
		}).Draw(t, "what"),
		owner:  rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "owner"),
		device: rapid.SampledFrom([]string{"", "a", "b", "c", "d"}).Draw(t, "device"),
		count:  rapid.IntRange(1, 3).Draw(t, "count"),
		plugin: rapid.IntRange(0, 1).Draw(t, "plugin"),
	}
}

func (w *world) start(store *memory) {
	h := &device.Handler{Store: store, ListTimeout: patience}
	if err := h.Open(); err != nil {
		panic(err)
	}
	w.handler, w.store = h, store
}

// register needs not succeed: the handler may be closing.
func (w *world) register(socket string) {
	_ = w.handler.RegisterPlugin(resource, socket, []string{"v1beta1"}, nil)
}

func (w *world) do(s step, sockets []string) {
	if s.what == "crash" || s.what == "close" {
		w.restart(s.what == "crash", sockets[s.plugin])
		return
	}
	w.mu.RLock()
	h, store := w.handler, w.store
	w.mu.RUnlock()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch s.what {
	case "allocate":
		request := device.Request{Resource: resource, Owner: s.owner, Count: s.count}
		if s.device != "" {
			request.Devices = []string{s.device}
		}
		a, err := h.Allocate(ctx, request)
		// The answer of a process that was killed meanwhile reaches nobody.
		w.mu.RLock()
		defer w.mu.RUnlock()
		if err == nil && !store.isCrashed() {
			w.ledger.given(a)
		}
	case "release":
		w.ledger.released(s.owner)
		_, _ = h.Release(ctx, resource, s.owner)
	case "health":
		health := []string{"", pluginapi.Healthy, pluginapi.Unhealthy}[s.count-1]
		if s.device != "" {
			w.plugins[s.plugin].set(s.device, health)
		}
	case "register":
		_ = h.RegisterPlugin(resource, sockets[s.plugin], []string{"v1beta1"}, nil)
	case "deregister":
		h.DeRegisterPlugin(resource)
	case "fail":
		store.mu.Lock()
		store.failPut, store.failDelete, store.alsoApplies = s.count == 1, s.count == 2, s.plugin == 1
		store.mu.Unlock()
	}
}

// restart puts another host into the place of the one there is, in order or as if it had been killed.
func (w *world) restart(killed bool, socket string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !killed {
		w.handler.Close()
	}
	next := w.store.crash()
	if killed {
		w.handler.Close() // what it still does reaches neither the disk nor a caller
	}
	w.start(next)
	w.register(socket)
}

// check compares what owners have with what the handler says. It may know of more: an allocation whose answer reached nobody.
func (w *world) check(rt *rapid.T) {
	w.store.fail(false, false)
	holders := map[string]string{}
	for _, a := range allocationsOf(w.handler) {
		for _, id := range a.Devices {
			if other := holders[id]; other != "" {
				rt.Fatalf("device %s is in the allocations of %s and %s", id, other, a.Owner)
			}
			holders[id] = a.Owner
		}
	}
	for id, owner := range w.ledger.holder {
		if holders[id] != owner {
			rt.Fatalf("device %s was given to %s, and the handler says %q", id, owner, holders[id])
		}
	}
	// Nobody is stuck, and nothing leaks: all can be released, and then all are available.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, owner := range []string{"x", "y", "z"} {
		for i := range maxCallers {
			if _, err := w.handler.Release(ctx, resource, owner+fmt.Sprint(i)); err != nil && !errors.Is(err, device.ErrNotFound) {
				rt.Fatal(err)
			}
		}
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		w.plugins[0].set(id, pluginapi.Healthy)
	}
	w.register(w.socket)
	deadline := time.After(patience)
	for show(w.handler) != "a:healthy b:healthy c:healthy d:healthy" {
		select {
		case <-w.handler.Changed():
		case <-time.After(10 * time.Millisecond): // a change may have come between the two
		case <-deadline:
			rt.Fatalf("devices are %s", show(w.handler))
		}
	}
}
