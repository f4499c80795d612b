package runtime_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// callThrough calls the launched plugin through the registry until stop is closed, and counts.
func (h *host) callThrough(stop <-chan struct{}, calls, failed *atomic.Int64) {
	client, err := dynamicplugins.Dispense[v1beta1.ExampleClient](h.rt.Registry(), "T", "launched")
	if err != nil {
		h.t.Error(err)
		return
	}
	for {
		select {
		case <-stop:
			return
		default:
		}
		calls.Add(1)
		if _, err := client.GetExampleInfo(h.t.Context(), &v1beta1.ExampleRequest{}); err != nil {
			h.t.Errorf("call %d failed: %v", calls.Load(), err)
			failed.Add(1)
			return
		}
	}
}

func TestRestartFailsNoCall(t *testing.T) {
	t.Parallel()
	t.Run("side by side", func(t *testing.T) { restartFailsNoCall(t, launchable("serve")) })
	t.Run("recreate", func(t *testing.T) {
		p := launchable("alone")
		p.Upgrade, p.Dir, p.Restart.Policy = plugin.UpgradeRecreate, t.TempDir(), plugin.RestartNever
		restartFailsNoCall(t, p)
	})
}

func restartFailsNoCall(t *testing.T, p launcher.Plugin) {
	h := newHost(t)
	h.set(p)
	before := h.running("registration")
	stop := make(chan struct{})
	var calls, failed atomic.Int64
	callers := make(chan struct{}, 16)
	for range cap(callers) {
		go func() {
			h.callThrough(stop, &calls, &failed)
			callers <- struct{}{}
		}()
	}
	for range 3 {
		if err := h.rt.Launcher().Restart(t.Context(), "unit"); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	for range cap(callers) {
		<-callers
	}
	if calls.Load() == 0 || failed.Load() > 0 {
		t.Errorf("%d of %d calls failed", failed.Load(), calls.Load())
	}
	if after := h.unit(); after.PID == before.PID || alive(before.PID) {
		t.Errorf("process %d was not replaced: %+v", before.PID, after)
	}
	// The socket of the old one is gone; that has to be noticed.
	h.until("the end of the old registration", func() bool { return len(h.rt.Registry().Instances("T", "launched")) == 1 })
}

// TestRecreationThatFails: callers wait for the new process until it is known that there is none, and no longer than they want to.
func TestRecreationThatFails(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := launchable("serve")
	p.Upgrade = plugin.UpgradeRecreate
	h.set(p)
	h.running("registration")
	client, err := dynamicplugins.Dispense[v1beta1.ExampleClient](h.rt.Registry(), "T", "launched")
	if err != nil {
		t.Fatal(err)
	}
	call := func(ctx context.Context) error {
		_, err := client.GetExampleInfo(ctx, &v1beta1.ExampleRequest{})
		return err
	}
	if err := call(t.Context()); err != nil {
		t.Error(err)
	}
	mute := launchable("mute")
	mute.Upgrade, mute.StartTimeout = p.Upgrade, time.Second // then it is the turn of the next
	h.set(mute)                                              // the replacement begins
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := call(ctx); status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "is being replaced") {
		t.Errorf("got %v", err)
	}
	waiting := make(chan error, 1)
	go func() { waiting <- call(t.Context()) }()
	crash := launchable("crash")
	crash.Upgrade = p.Upgrade
	h.set(crash)
	if err := <-waiting; !errors.Is(err, dynamicplugins.ErrNotFound) {
		t.Errorf("got %v, want %v", err, dynamicplugins.ErrNotFound)
	}
	h.set(p)
	h.running("registration")
	if err := call(t.Context()); err != nil {
		t.Error(err)
	}
}
