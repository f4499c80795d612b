package dynamicplugins

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// TestNothingIsLeft: a plugin whose last instance has gone, one that was only staged or could not be found, and one that somebody
// waited for in vain leave nothing behind.
func TestNothingIsLeft(t *testing.T) {
	r := newRegistry(nil, []Option{WithConnDispenser("t", nil)})
	if err := r.load(nil); err != nil {
		t.Fatal(err)
	}
	defer r.Shutdown()
	for i := range 100 {
		p := &PluginInfo{Type: fmt.Sprint("type ", i%10), Name: fmt.Sprint("name ", i), ConnectionInfo: &PluginConnectionInfo{}}
		k := plugin.Name{Type: p.Type, Name: p.Name}
		staged, err := r.StagePlugin(p)
		if err == nil {
			err = staged.Discard()
		}
		if err == nil {
			err = r.RegisterPlugin(p)
		}
		if err != nil {
			t.Fatal(err)
		}
		if conn, err := r.view(k).shared.link.begin(false); conn == nil || err != nil {
			t.Fatal(conn, err)
		}
		r.view(k).shared.link.end()
		if err := r.DeregisterPlugin(p.Type, p.Name, p.AllocID); err != nil {
			t.Fatal(err)
		}
		if err := r.DeregisterPlugin(p.Type, p.Name, p.AllocID); err == nil {
			t.Fatal("deregistered twice")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
		if _, err := r.WaitForPlugin(ctx, p.Type, p.Name); err == nil {
			t.Fatal("found what is gone")
		}
		cancel()
	}
	perPlugin := 0
	r.perPlugin.Range(func(any, any) bool { perPlugin++; return true })
	if left := perPlugin + len(r.names) + len(r.waits) + len(r.pool.open); left != 0 {
		t.Errorf("left: %d perPlugin, names %v, waits %v, connections %v", perPlugin, r.names, r.waits, r.pool.open)
	}
}
