package dra_test

import (
	"context"
	"errors"
	"testing"

	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/dra"
)

// TestRefuses checks that New refuses negative timeouts, and that a Handler refuses claims and drivers that cannot be.
func TestRefuses(t *testing.T) {
	for name, config := range map[string]dra.Config{
		"CallTimeout": {CallTimeout: -1}, "Timeout": {Timeout: -1}, "ConnectTimeout": {ConnectTimeout: -1},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a negative %s was accepted", name)
				}
			}()
			_ = dra.New(config).Close()
		}()
	}
	h := newHandler(t, dra.Config{})
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
	for range h.WatchHealth(ended, driverName) {
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
		for range h.WatchHealth(t.Context(), driverName) {
			t.Error("a closed handler has a state")
		}
	}
}
