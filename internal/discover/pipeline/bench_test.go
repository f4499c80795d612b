package pipeline

import (
	"strconv"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/plugin"
)

// BenchmarkStage is what the registry costs a registration, without the disk.
func BenchmarkStage(b *testing.B) {
	store, err := dynamicplugins.Open(nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer store.Shutdown()
	registry := RegistryOf(store)
	in := plugin.Instance{
		Type: "T", Versions: []string{"v1"}, Endpoint: "/run/plugins/foo.sock", SocketPath: "/run/plugins/foo.sock",
		Socket: plugin.SocketID{Device: 1, Inode: 2, Birth: 3}, Peer: plugin.Peer{PID: 4, Start: 5, Boot: "b5f0d1d4"},
		Source: plugin.SourceDiscovered, Rank: 1 << 40, RegisteredAt: time.Now(), Account: plugin.Account{UID: 8, GID: 9, Known: true},
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		in.Name = strconv.Itoa(i)
		in.ID = in.Name
		stage := registry.Stage([]plugin.Instance{in})[0]
		if stage.Err != nil {
			b.Fatal(stage.Err)
		}
		stage.Staged.Publish()
	}
}
