package csi_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/handlers/csi"
)

func TestValidate(t *testing.T) {
	h := csi.NewHandler(csi.Options{})
	for name, want := range map[string]string{
		driverName: "", "a": "", "A-1.b": "", strings.Repeat("x", 63): "",
		"":                      "is not a valid name of a CSI driver",
		strings.Repeat("x", 64): "a CSI driver's name of 64 bytes is too long: 63 are allowed",
		"-a":                    "is not a valid name of a CSI driver", "a.": "is not a valid name", "a_b": "is not a valid name", "a/b": "is not a valid name",
		"../x": "is not a valid name", "a\n": "is not a valid name", "ü": "is not a valid name",
	} {
		err := h.ValidatePlugin(name, "e", versions)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", name, err, want)
		}
		if want != "" {
			if err := h.RegisterPlugin(name, "e", versions, nil); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("RegisterPlugin %q: got %v, want %q", name, err, want)
			}
		}
	}
	want := `cannot use CSI driver a: none of the announced CSI versions ["0.3.0"] is supported: only 1.x is, and 0.x no more`
	if err := h.ValidatePlugin("a", "e", []string{"0.3.0"}); err == nil || err.Error() != want {
		t.Errorf("0.3.0: got %v, want %s", err, want)
	}
	if err := h.RegisterPlugin("a", "e", nil, nil); err == nil || !strings.Contains(err.Error(), "no CSI version was announced") {
		t.Errorf("RegisterPlugin without versions: %v", err)
	}
}

// TestDeprecatedDir: only drivers that are old enough to announce 0.x have a reason to be there.
func TestDeprecatedDir(t *testing.T) {
	h := csi.NewHandler(csi.Options{})
	for _, c := range []struct {
		versions   []string
		deprecated bool
		want       string
	}{
		{[]string{"1.0.0"}, false, ""},
		{[]string{"0.3.0", "1.0.0"}, true, ""},
		{[]string{"0.3.0", "1.0.0"}, false, ""},
		{[]string{"1.0.0"}, true, "cannot use CSI driver a: it was found in the deprecated plugin directory, and announces no CSI version 0.x; "},
		{[]string{"0.3.0"}, true, "only 1.x is, and 0.x no more"},
	} {
		err := h.ValidatePluginInDir("a", "e", c.versions, c.deprecated)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v, %v: got %v, want %q", c.versions, c.deprecated, err, c.want)
		}
	}
}

// TestNodeInfoOf: what is damaged, or not there, is not half there.
func TestNodeInfoOf(t *testing.T) {
	full := map[string]string{"csi/node-id": "n", "csi/max-volumes-per-node": "3", "csi/topology": `{"a":"b"}`}
	with := func(key, value string) *dynamicplugins.PluginInfo {
		options := maps.Clone(full)
		options[key] = value
		return &dynamicplugins.PluginInfo{Options: options}
	}
	for _, c := range []struct {
		info *dynamicplugins.PluginInfo
		want bool
	}{
		{nil, false},
		{&dynamicplugins.PluginInfo{}, false},
		{&dynamicplugins.PluginInfo{Options: full}, true},
		{with("csi/node-id", ""), false},
		{with("csi/max-volumes-per-node", ""), true},
		{with("csi/max-volumes-per-node", "many"), false},
		{with("csi/topology", ""), true},
		{with("csi/topology", "{"), false},
	} {
		got, ok := csi.NodeInfoOf(c.info)
		if ok != c.want || !ok && !cmp.Equal(got, csi.NodeInfo{}) {
			t.Errorf("%+v: got %+v, %v", c.info, got, ok)
		}
	}
}

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
