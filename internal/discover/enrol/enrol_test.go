package enrol

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/reconciler"
	"github.com/patchbay-dev/patchbay/trust"
)

// TestReadBack: what is kept of an instance is read back as it was, and of what is damaged the rest is.
func TestReadBack(t *testing.T) {
	in := reconciler.Instance{
		ID: "id", Type: "T", Name: "foo", Versions: []string{"v1", "v2"}, Endpoint: "/foo.api", SocketPath: "/foo.sock",
		Socket: cache.SocketID{Device: 1, Inode: 2, Birth: 3}, Peer: reconciler.Peer{PID: 4, StartTime: 5, Boot: "boot"},
		Source: reconciler.SourceLaunched, Rank: math.MaxInt64, RegisteredAt: time.Unix(6, 7).UTC(),
		Account:      trust.Account{UID: 8, GID: 9, Known: true},
		Registration: cache.Registration{Version: "1.2", Roles: []string{"role"}, WatchEndpoint: true, Details: map[string]string{"node": "n"}},
	}
	info := infoOf(in)
	if got, err := instanceOf(info); err != nil || !reflect.DeepEqual(got, in) {
		t.Errorf("read back: %+v, %v", got, err)
	}
	in.Peer.Boot = "" // where a boot has no name
	if got, err := instanceOf(infoOf(in)); err != nil || !reflect.DeepEqual(got, in) {
		t.Errorf("read back without a boot: %+v, %v", got, err)
	}
	for option, damaged := range map[string]string{
		optionSocketID: "x", optionPeer: "x", optionAccount: "x", optionVersions: "x", optionRoles: "x", optionRegisteredAt: "x",
		optionRank: "9223372036854775808",
	} {
		info := infoOf(in)
		info.Options[option] = damaged
		if got, err := instanceOf(info); err == nil || !strings.Contains(err.Error(), damaged) || got.ID != in.ID || got.SocketPath != in.SocketPath {
			t.Errorf("with %s %q: %+v, %v", option, damaged, got, err)
		}
	}
	delete(info.Options, optionRank)
	if got, err := instanceOf(info); err != nil || got.Rank != 0 || !reflect.DeepEqual(infoOf(got), info) {
		t.Errorf("without a rank: %+v, %v", got, err)
	}
}
