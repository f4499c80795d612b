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
		Record: &PluginRecord{
			Roles: []string{"role"}, SocketPath: "/foo.sock", Socket: plugin.SocketID{Device: 1, Inode: 2, Birth: 3},
			Peer: plugin.Peer{PID: 4, Start: 5, Boot: "boot"}, Account: &PluginAccount{UID: 8, GID: 9}, Versions: []string{"v1", "v2"},
			Source: "launched", Rank: math.MaxInt64, RegisteredAt: time.Unix(6, 7).UTC(), EndpointWatched: true,
		},
	}
	if got := fromStored(toStored(info)); !cmp.Equal(got, info) {
		t.Errorf("read back: %+v", got.Record)
	}
	for option, damaged := range map[string]string{
		optionSocketID: "x", optionPeer: "x", optionAccount: "x", optionVersions: "x", optionRoles: "x", optionRegisteredAt: "x",
		optionRank: "9223372036854775808",
	} {
		stored := toStored(info)
		stored.Options[option] = damaged
		if r := fromStored(stored).Record; r.Damage == nil || !strings.Contains(r.Damage.Error(), damaged) || r.SocketPath != "/foo.sock" {
			t.Errorf("with %s %q: %+v", option, damaged, r)
		}
	}
	info.Record.Peer.Boot = "" // where a boot has no name
	if got := fromStored(toStored(info)); !cmp.Equal(got, info) {
		t.Errorf("read back without a boot: %+v", got.Record)
	}
	forged := &PluginInfo{ConnectionInfo: &PluginConnectionInfo{}, Options: map[string]string{optionSource: "forged"}, Record: info.Record}
	if stored := toStored(forged); stored.Options[optionSource] != "launched" || forged.Options[optionSource] != "forged" {
		t.Errorf("stored %v", stored.Options)
	}
	role := &PluginInfo{ConnectionInfo: &PluginConnectionInfo{}, Record: &PluginRecord{RoleOf: "T", Account: info.Record.Account}}
	if got := fromStored(toStored(role)); !cmp.Equal(got, role) {
		t.Errorf("the role: %+v", got.Record)
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
