package fleet

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
)

// openEmpty returns a reader that has read a fleet without nodes, and has lost etcd.
func openEmpty() *Reader {
	r := Open(clusterOf(&fake{away: true}, defaultTimeout), ReaderConfig{})
	v := r.use()
	r.mu.Lock()
	defer r.mu.Unlock()
	v.settle(nil)
	r.all().listed = true
	return r
}

// TestWaitLooksOnce checks that a wait compares the plugins once for many simultaneous changes, as when a fleet starts, and sees the last
// of them.
func TestWaitLooksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := openEmpty()
		defer r.Close()
		var looks []int
		waited := make(chan int)
		go func() {
			plugins, err := r.Wait(t.Context(), Filter{Names: []string{"n"}}, func(p []Instance) bool {
				looks = append(looks, len(p))
				return len(p) == 8
			})
			if err != nil {
				t.Error(err)
			}
			waited <- len(plugins)
		}()
		synctest.Wait()
		add := func(node, plugin string) {
			r.all().publish(node, &Node{Name: node, State: NodeReady, plugins: []*fleetv1.PluginRecord{{Type: "T", Name: plugin}}})
		}
		r.mu.Lock()
		for i := range 7 { // with the other, as many changes as a subscriber may leave unread before it is served otherwise
			add(fmt.Sprint(i), "n")
		}
		add("other", "o")
		r.mu.Unlock()
		synctest.Wait()
		if len(looks) > 4 || looks[len(looks)-1] != 7 {
			t.Errorf("after many changes it saw %v", looks)
		}
		r.mu.Lock()
		add("last", "n")
		r.mu.Unlock()
		if got := <-waited; got != 8 {
			t.Errorf("%d plugins", got)
		}
	})
}

// TestOrder checks that plugins are ordered by type, name and node, and within a node as it has published them.
func TestOrder(t *testing.T) {
	r := openEmpty()
	r.Close()
	for _, name := range []string{"b", "a", "c"} {
		r.all().nodes[name] = &Node{Name: name, State: NodeReady, plugins: []*fleetv1.PluginRecord{
			{Type: "T", Name: "y", Instance: "2"}, {Type: "T", Name: "y", Instance: "1"}, {Type: "T", Name: "x"}, {Type: "S", Name: "z"},
		}}
	}
	var got []string
	for _, p := range r.Plugins(Filter{Nodes: []string{"c", "a"}}) {
		got = append(got, p.GetType()+p.GetName()+p.Node.Name+p.GetInstance())
	}
	if want := []string{"Sza", "Szc", "Txa", "Txc", "Tya2", "Tya1", "Tyc2", "Tyc1"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestFlappingNode checks that each change of the state of a node is one entry for a slow subscriber, regardless of the number of its
// plugins.
func TestFlappingNode(t *testing.T) {
	r := openEmpty()
	defer r.Close()
	_, changes, err := r.Watch(t.Context(), Filter{})
	if err != nil {
		t.Fatal(err)
	}
	const plugins, flaps = 20, 1000 // together far more than a subscriber may leave unread
	states := []*Node{{Name: "a", State: NodeReady}, {Name: "a", State: NodeUnreachable}}
	for i := range plugins {
		p := &fleetv1.PluginRecord{Type: "T", Name: fmt.Sprint(i)}
		for _, m := range states {
			m.plugins = append(m.plugins, p)
		}
	}
	r.mu.Lock()
	for i := range flaps {
		r.all().publish("a", states[i%2])
	}
	r.mu.Unlock()
	got := 0
	for c := range changes {
		if c.Kind == Resync {
			t.Fatalf("a resync after %d changes", got)
		}
		if got++; got == flaps*(plugins+1) {
			break
		}
	}
}

// TestLargeSteps checks that the unread changes of a subscriber are also bounded by their size, so that a node whose large record keeps
// changing does not fill the memory.
func TestLargeSteps(t *testing.T) {
	r := openEmpty()
	defer r.Close()
	_, changes, err := r.Watch(t.Context(), Filter{})
	if err != nil {
		t.Fatal(err)
	}
	large := &fleetv1.NodeRecord{}
	for range maxEntries / 4 {
		large.Conditions = append(large.Conditions, &fleetv1.Condition{})
	}
	known := &facts{}
	known.put(keys.Record, &mvccpb.KeyValue{Value: marshal(t, large)})
	for i := range 400 {
		m := known.node("a", nil, time.Time{}, time.Time{})
		m.NodeRecord = &fleetv1.NodeRecord{Version: fmt.Sprint(i)}
		r.mu.Lock()
		r.all().publish("a", m)
		r.mu.Unlock()
	}
	r.mu.Lock()
	r.feed.Close()
	r.mu.Unlock()
	for c := range changes {
		if c.Kind == Resync {
			return
		}
	}
	t.Error("all of 400 large steps were kept")
}

// TestUnusedReader checks that a reader follows the fleet only while it is used, and that it reads the fleet again when it is used again.
func TestUnusedReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := newRanges(t)
		etcd.node("a", true, nil)
		r := Open(clusterOf(etcd, time.Second), ReaderConfig{})
		defer r.Close()
		follows := func(when string, want bool) {
			t.Helper()
			synctest.Wait()
			if got := r.IsFollowed(); got != want || len(r.Nodes()) == 1 != want {
				t.Errorf("%s: it follows the fleet: %t, and has %d nodes", when, got, len(r.Nodes()))
			}
		}
		follows("before it is used", false)
		ctx, cancel := context.WithCancel(t.Context())
		_, _, err := r.Watch(ctx, Filter{})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * idleAfter)
		follows("while it is watched", true)
		cancel()
		time.Sleep(idleAfter - time.Minute)
		follows("after the watch", true)
		r.Use()
		time.Sleep(idleAfter - time.Minute)
		follows("after another use", true)
		time.Sleep(3 * time.Minute)
		follows("after the last use", false)
		if err := r.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		follows("when it is used again", true)
		etcd.refusing(away)
		r.lost(errAway)
		time.Sleep(3 * idleAfter)
		follows("while etcd is away", true)
		if lists := r.Stats().Lists; lists != 2 {
			t.Errorf("%d lists", lists)
		}
	})
}
