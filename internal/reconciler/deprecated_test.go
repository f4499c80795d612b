package reconciler_test

import (
	"testing"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
)

// Whether a plugin lies in the deprecated directory is the handler's to judge, so it is asked again when that changes, whatever it is
// doing meanwhile.
func TestMovedToDeprecatedDir(t *testing.T) {
	up := []string{"validate foo /a.api", "register foo /a.api"}
	move := func(w *world, p *fakePlugin) {
		w.mu.Lock()
		delete(w.plugins, "/a")
		w.plugins["/old/a"] = p
		w.mu.Unlock()
		w.desired.MoveSocket("/a", cache.PluginInfo{SocketPath: "/old/a", Socket: p.socket, FoundInDeprecatedDir: true})
	}
	bubble(t, "while it rests", reconciler.Config{}, func(_ *testing.T, w *world) {
		p := w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		move(w, p)
		w.expectCalls(up...)
		w.expectCalls()
	})
	bubble(t, "while it is being registered", reconciler.Config{}, func(_ *testing.T, w *world) {
		block := make(chan struct{})
		w.handler.slow = map[string]chan struct{}{"register /a.api": block}
		p := w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		move(w, p)
		w.expectCalls()
		close(block)
		w.expectCalls(up...)
		w.expectCalls()
	})
}
