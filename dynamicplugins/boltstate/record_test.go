package boltstate

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
)

func TestRecord(t *testing.T) {
	key := appendKey(nil, "csi-node", "hostpath.csi.k8s.io")
	want := []*dynamicplugins.PluginInfo{
		{
			Type: "csi-node", Name: "hostpath.csi.k8s.io", Version: "1", AllocID: "b",
			ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/run/\xff.sock"},
			Options:        map[string]string{"": "x", "y": ""},
		},
		{Type: "csi-node", Name: "hostpath.csi.k8s.io", Options: map[string]string{}},
		{Type: "csi-node", Name: "hostpath.csi.k8s.io", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{}},
	}
	value := appendValue(nil, key, want)
	got, err := decode(key, value)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for i := range value {
		damaged := bytes.Clone(value)
		damaged[i] ^= 0x10
		if _, err := decode(key, damaged); err == nil {
			t.Errorf("damage at byte %d went unnoticed", i)
		}
		if _, err := decode(key, value[:i]); err == nil {
			t.Errorf("truncation to %d bytes went unnoticed", i)
		}
	}
	if _, err := decode(appendKey(nil, "csi-node", "other"), value); err == nil {
		t.Error("the value of another key was accepted")
	}
}

// FuzzRecord checks that a record with a correct checksum either is an error, or decodes to instances that are equal after they are encoded
// and decoded again.
func FuzzRecord(f *testing.F) {
	key := appendKey(nil, "t", "n")
	f.Add(key, appendValue(nil, key, []*dynamicplugins.PluginInfo{{Type: "t", Name: "n", Options: map[string]string{"a": "b"}}}))
	f.Add([]byte{}, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, key, body []byte) {
		sum := checksum(key, body)
		value := append(bytes.Clone(body), byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum))
		plugins, err := decode(key, value)
		if err != nil || len(plugins) == 0 {
			return
		}
		key = appendKey(nil, plugins[0].Type, plugins[0].Name)
		again, err := decode(key, appendValue(nil, key, plugins))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(plugins, again); d != "" {
			t.Errorf("(-first +again):\n%s", d)
		}
	})
}
