package dynamicplugins

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/plugin"
)

// TestStoredRecord: a record is read back from the options of a storage as it was, and of what is damaged the rest is.
func TestStoredRecord(t *testing.T) {
	info := &PluginInfo{
		Type: "T", Name: "foo", ConnectionInfo: &PluginConnectionInfo{}, Options: map[string]string{"node": "n"},
		Instance: &plugin.Instance{
			Type: "T", Name: "foo", SocketPath: "/foo.sock", Socket: plugin.SocketID{Device: 1, Inode: 2, Birth: 3},
			Peer: plugin.Peer{PID: 4, Start: 5, Boot: "boot"}, Account: plugin.Account{UID: 8, GID: 9, Known: true}, Versions: []string{"v1", "v2"},
			Source: plugin.SourceLaunched, Rank: math.MaxInt64, RegisteredAt: time.Unix(6, 7).UTC(),
			Registration: plugin.Registration{Roles: []string{"role"}, Details: map[string]string{"node": "n"}, WatchEndpoint: true},
		},
	}
	if got := fromStored(toStored(info)); !cmp.Equal(got, info) {
		t.Errorf("read back: %+v", got.Instance)
	}
	for option, damaged := range map[string]string{
		optionSocketID: "x", optionPeer: "x", optionAccount: "x", optionVersions: "x", optionRoles: "x", optionRegisteredAt: "x",
		optionRank: "9223372036854775808",
	} {
		stored := toStored(info)
		stored.Options[option] = damaged
		if p := fromStored(stored); p.Damage == nil || !strings.Contains(p.Damage.Error(), damaged) || p.Instance.SocketPath != "/foo.sock" {
			t.Errorf("with %s %q: %+v", option, damaged, p)
		} else if again := toStored(p); again.Damage != nil {
			t.Errorf("with %s %q: the storage gets %v", option, damaged, again.Damage)
		}
	}
	info.Instance.Peer.Boot = "" // where a boot has no name
	if got := fromStored(toStored(info)); !cmp.Equal(got, info) {
		t.Errorf("read back without a boot: %+v", got.Instance)
	}
	forged := &PluginInfo{ConnectionInfo: &PluginConnectionInfo{}, Options: map[string]string{optionSource: "forged"}, Type: "T", Instance: info.Instance}
	if stored := toStored(forged); stored.Options[optionSource] != "launched" || forged.Options[optionSource] != "forged" {
		t.Errorf("stored %v", stored.Options)
	}
	role := &PluginInfo{ConnectionInfo: &PluginConnectionInfo{}, Instance: &plugin.Instance{Type: "T", Account: info.Instance.Account}}
	if got := fromStored(toStored(role)); !cmp.Equal(got, role) {
		t.Errorf("the role: %+v", got.Instance)
	}
}

// TestStoredList: a list is stored as encoding/json has it, whatever is in it.
func TestStoredList(t *testing.T) {
	for _, list := range [][]string{
		nil, {}, {""}, {"1.0.0"}, {"v1", "v1beta1"}, {`"`, `\`}, {"<a>", "b&c"}, {"a\x00b\x7f\u2028"}, {"ü", "v1"}, {"\xff"},
	} {
		want, err := json.Marshal(list)
		if got := appendList([]byte("x"), list); err != nil || string(got) != "x"+string(want) {
			t.Errorf("%q: stored as %s, want %s, %v", list, got[1:], want, err)
		}
	}
}
