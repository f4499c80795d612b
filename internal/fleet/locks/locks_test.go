package locks

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/plugin"
)

// written returns the key of a contender as etcd has it.
func written(c keys.Contender, value string) *clientv3.Event {
	return &clientv3.Event{Type: mvccpb.PUT, Kv: &mvccpb.KeyValue{
		Key: []byte(c.Key(keys.Space{})), Value: []byte(value), Lease: int64(c.Lease), CreateRevision: c.Created, ModRevision: c.Created,
	}}
}

// deleted returns the deletion of the key of a contender, as etcd notifies of it.
func deleted(c keys.Contender, revision int64) *clientv3.Event {
	return &clientv3.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(c.Key(keys.Space{})), ModRevision: revision}}
}

// TestRoster: a contender takes the lock at once after one that said that it left, and a lease later after one that vanished, or after the
// list.
func TestRoster(t *testing.T) {
	now := time.Now()
	l := plugin.Name{Type: "T", Name: "n"}
	first := keys.Contender{Lock: l, Node: "a", TTL: 5 * time.Second, Lease: 1, Created: 10}
	second := keys.Contender{Lock: l, Node: "b", TTL: 2 * time.Second, Lease: 2, Created: 11}
	for name, test := range map[string]struct {
		gone []*clientv3.Event
		free time.Duration // after the last event, zero for at once
	}{
		"left":             {[]*clientv3.Event{written(first, keys.ContenderLeft), deleted(first, 13)}, 0},
		"vanished":         {[]*clientv3.Event{deleted(first, 12)}, 5 * time.Second},
		"replaced":         {[]*clientv3.Event{written(first, "x")}, 5 * time.Second},
		"created again":    {[]*clientv3.Event{written(keys.Contender{Lock: l, Node: "a", TTL: 5 * time.Second, Lease: 1, Created: 12}, "waits 5")}, 5 * time.Second},
		"left another key": {[]*clientv3.Event{written(keys.Contender{Lock: l, Node: "a", Lease: 1, Created: 12}, keys.ContenderLeft)}, 5 * time.Second},
	} {
		r := newRoster(keys.Space{}, 2*time.Second, now, 9, nil)
		r.apply([]*clientv3.Event{written(first, first.Value()), written(second, second.Value())}, now)
		if is, _ := r.isFirst(second); is || !r.has(first) || !r.has(second) {
			t.Errorf("%s: the second is the first: %t", name, is)
		}
		later := now.Add(time.Minute)
		r.apply(test.gone, later)
		is, free := r.isFirst(second)
		if !is || r.has(first) || test.free > 0 && !free.Equal(later.Add(test.free)) || test.free == 0 && !free.Equal(now.Add(5*time.Second)) {
			t.Errorf("%s: first: %t, free %v after the list", name, is, free.Sub(now))
		}
	}
	r := newRoster(keys.Space{}, 2*time.Second, now, 9, nil)
	if r.apply([]*clientv3.Event{written(second, second.Value()), deleted(first, 12)}, now); !r.has(keys.Contender{Lock: l, Created: 13}) {
		t.Error("a key that is not known yet counts as gone")
	}
	r.apply([]*clientv3.Event{written(first, first.Value()), deleted(first, 13)}, now) // as if restored
	if is, free := r.isFirst(second); !is || !free.Equal(now.Add(5*time.Second)) {
		t.Errorf("after an earlier one that vanished: %t, %v", is, free.Sub(now))
	}
}

// TestRosterForgets: of locks for which nobody competes any more, nothing is kept.
func TestRosterForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoster(keys.Space{}, time.Second, time.Now(), 1, nil)
		for i := range int64(1000) {
			for _, ptype := range []string{"T", "U"} {
				c := keys.Contender{Lock: plugin.Name{Type: ptype, Name: fmt.Sprint(i)}, Node: "a", TTL: 5 * time.Second, Lease: 1, Created: i + 1}
				r.apply([]*clientv3.Event{written(c, c.Value())}, time.Now())
				if ptype == "U" {
					r.apply([]*clientv3.Event{written(c, keys.ContenderLeft)}, time.Now())
				}
				r.apply([]*clientv3.Event{deleted(c, i+2)}, time.Now())
			}
			time.Sleep(time.Second)
			r.forget(time.Now())
		}
		if len(r.contenders.States()) > 0 || len(r.quiet) > 6 {
			t.Errorf("of %d and %d locks something is kept", len(r.contenders.States()), len(r.quiet))
		}
	})
}

// TestLedger: the base is raised above all tokens when revisions go back, which is told once, and is remembered.
func TestLedger(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	l, err := openLedger(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		revision, kept, base int64
		back                 bool
	}{
		{100, 0, 0, false},
		{200, 0, 0, false},
		{200, 0, 0, false},
		{150, 0, 200, true},      // restored
		{151, 200, 200, false},   // written meanwhile
		{152, 1000, 1000, false}, // another node knew of greater tokens
		{90, 0, 1152, true},      // restored to before that was written
		{5_000_000, 0, 1152, false},
	} {
		if base, back := l.see(step.revision, step.kept); base != step.base || back != step.back {
			t.Errorf("step %d: base %d, back %v; want %d, %v", i, base, back, step.base, step.back)
		}
	}
	if err := l.keep(); err != nil {
		t.Fatal(err)
	}
	after, err := openLedger(file)
	if err != nil {
		t.Fatal(err)
	}
	if base, back := after.see(10, 0); base <= 5_000_000 || !back {
		t.Errorf("after a restart: base %d, back %v", base, back)
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, filepath.Dir(file)} {
		if _, err := openLedger(path); err == nil {
			t.Errorf("%s, which cannot be read, is passed over", path)
		}
	}
}
