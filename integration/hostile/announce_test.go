//go:build linux

package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/integration/internal/programs"
)

// TestMuchIsAnnounced has 1,000 plugins of one user announce as much as each may, and 1,000 more: the daemon keeps what it keeps for one user.
func TestMuchIsAnnounced(t *testing.T) {
	t.Parallel()
	// What 1,000 announcements of 57 KB took was 300 MB of memory, 71 MB of state, and 59 MB for each list.
	const plugins, mostState = 2_000, 24 << 20
	mostMemory := 2 * moreMemory
	if programs.Raced {
		mostMemory *= raceFactor
	}
	s := newScene(t, &attack{})
	s.resetPeak()
	before := s.usage()
	for i := range plugins {
		dir := filepath.Join(s.plugins, fmt.Sprint("d", i/maxSockets))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		version := strings.Repeat("v", 64)
		if i%2 == 1 {
			version = strings.Repeat("v", 57<<10/64) // as it was
		}
		info := &registerapi.PluginInfo{Type: hostileType, Name: strings.Repeat("n", 200) + fmt.Sprint(i)}
		info.Endpoint = "/" + strings.Repeat("e", 4_000)
		for range 64 {
			info.SupportedVersions = append(info.SupportedVersions, version)
		}
		l := listen(filepath.Join(dir, fmt.Sprint(i)))
		t.Cleanup(func() { _ = l.Close() })
		go func() { _ = serveGRPC(l, func() *registerapi.PluginInfo { return info }) }()
		if (i+1)%(plugins/20) == 0 { // to list them costs much
			s.await("they are known", func() bool {
				n := 0
				for _, p := range s.list().Plugins {
					if strings.HasPrefix(p.SocketPath, filepath.Join(s.plugins, "d")) && (p.State == "registered" || p.LastError != "") {
						n++
					}
				}
				return n == i+1
			})
		}
	}
	if n := s.metric(`patchbay_refusals_total{reason="announcements"}`); n == 0 {
		t.Error("nothing was refused")
	}
	if n := strings.Count(s.log.String(), "would announce more than"); n != 1 {
		t.Errorf("%d lines of the log say so", n)
	}
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			if l, err := s.client.List(t.Context()); err != nil || len(l.Plugins) < plugins {
				t.Errorf("%d plugins are listed: %v", len(l.Plugins), err)
			}
		})
	}
	all.Wait()
	s.newcomer()
	after := s.usage()
	state, err := os.Stat(s.path("state.db"))
	if err != nil || state.Size() > mostState || after.memory > before.memory+mostMemory {
		t.Errorf("the state has %d bytes (%v), the memory grew from %d to %d KiB", state.Size(), err, before.memory, after.memory)
	}
	t.Logf("the state has %d bytes, the memory grew from %d to %d KiB", state.Size(), before.memory, after.memory)
}
