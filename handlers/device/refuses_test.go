package device_test

import (
	"path/filepath"
	"testing"

	"github.com/patchbay-dev/patchbay/handlers/device"
)

// TestRefuses checks that Open refuses what cannot work.
func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	inner, beside := filepath.Join(dir, "inner"), t.TempDir()
	for name, h := range map[string]*device.Handler{
		"a socket directory in the plugin directory": {SocketDir: inner, PluginDir: dir},
		"a plugin directory in the socket directory": {SocketDir: dir, PluginDir: inner},
		"one directory for both":                     {SocketDir: dir, PluginDir: dir + "/."},
		"no plugin directory":                        {SocketDir: dir},
		"CallTimeout":                                {CallTimeout: -1},
		"ListTimeout":                                {ListTimeout: -1},
		"MaxDevices":                                 {MaxDevices: -1},
		"MaxTotalDevices":                            {MaxTotalDevices: -1},
		"MaxResources":                               {MaxResources: -1},
	} {
		if h.Open() == nil {
			t.Errorf("%s was accepted", name)
			_ = h.Close()
		}
	}
	h := &device.Handler{SocketDir: beside, PluginDir: dir}
	if err := h.Open(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}
