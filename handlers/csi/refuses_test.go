package csi_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/handlers/csi"
)

// TestRefuses checks that NewHandler refuses negative timeouts, and that a Handler refuses what cannot be a driver.
func TestRefuses(t *testing.T) {
	for name, options := range map[string]csi.Options{"CallTimeout": {CallTimeout: -1}, "ReadyTimeout": {ReadyTimeout: -1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a negative %s was accepted", name)
				}
			}()
			csi.NewHandler(options)
		}()
	}
	h := csi.NewHandler(csi.Options{CallTimeout: time.Millisecond, ReadyTimeout: time.Millisecond})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	versions := []string{"1.0.0"}
	for name, err := range map[string]error{
		"no name":               h.RegisterPlugin("", "/nowhere", versions, nil),
		"a name with a slash":   h.RegisterPlugin("a/b", "/nowhere", versions, nil),
		"a control character":   h.RegisterPlugin("a\x00", "/nowhere", versions, nil),
		"no version":            h.RegisterPlugin("a", "/nowhere", nil, nil),
		"no endpoint":           h.RegisterPlugin("a", "", versions, nil),
		"a NUL in the endpoint": h.RegisterPlugin("a", "/a\x00", versions, nil),
		"a negative timeout":    h.RegisterPlugin("a", "/nowhere", versions, new(time.Duration(-1))),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := h.RegisterPluginContext(ended, "a", "/nowhere", versions, nil); !errors.Is(err, cache.ErrRetry) {
		t.Errorf("with a context that has ended: %v", err)
	}
	for range 2 {
		h.DeRegisterPlugin("")
		h.DeRegisterPlugin("none")
	}
	if _, ok := csi.NodeInfoOf(&dynamicplugins.PluginInfo{}); ok {
		t.Error("a plugin without options has a node")
	}
}
