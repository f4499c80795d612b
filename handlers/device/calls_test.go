package device_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/device"
)

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
	r := newRig(t, f, &device.Handler{})
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
	if got := allocationsOf(r.Handler); len(got) != 0 {
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
	r := newRig(t, f, &device.Handler{})
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

// TestAdviceIsNotWaitedFor: a plugin that does not say what it prefers costs an allocation a second, not the timeout of a call.
func TestAdviceIsNotWaitedFor(t *testing.T) {
	f := newFake("a", "b")
	f.options = &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}
	var inTime atomic.Bool
	f.prefer = func(*pluginapi.ContainerPreferredAllocationRequest) ([]string, error) {
		if !inTime.Load() {
			return nil, errors.New("too late")
		}
		return []string{"b"}, nil
	}
	had := make(chan time.Duration, 1)
	f.asked = func(ctx context.Context) {
		deadline, _ := ctx.Deadline()
		had <- time.Until(deadline)
		<-ctx.Done()
	}
	r := newRig(t, f, &device.Handler{})
	if got := r.give("one", 1).Devices; got[0] != "a" {
		t.Errorf("allocated are %v, want those of a plugin without preferences", got)
	}
	if d := <-had; d > time.Second {
		t.Errorf("GetPreferredAllocation may take %v of an allocation, want a second", d)
	}
	// Who asks for nothing else waits for the answer.
	inTime.Store(true)
	f.asked = func(ctx context.Context) {
		deadline, _ := ctx.Deadline()
		had <- time.Until(deadline)
	}
	if got, err := r.Preferred(t.Context(), device.Request{Resource: resource}); err != nil || len(got) != 1 || got[0] != "b" {
		t.Errorf("preferred are %v, %v", got, err)
	}
	if d := <-had; d <= time.Second {
		t.Errorf("GetPreferredAllocation may take %v, want the timeout of a call", d)
	}
}

func TestCloseTells(t *testing.T) {
	r := newRig(t, newFake("a"), &device.Handler{})
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
	r := newRig(t, f, &device.Handler{})
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
