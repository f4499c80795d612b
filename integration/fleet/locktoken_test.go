package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/fleet/locks"
	"github.com/patchbay-dev/patchbay/plugin"
)

// oneHolder has the electors watched until the returned function is called, which reports two that held the lock at one instant, and a token
// that did not grow. It returns the holder too.
func oneHolder(t *testing.T, lock plugin.Name, electors ...*locks.Elector) (holder func() *locks.Hold) {
	t.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	holds := make(chan *locks.Hold)
	go func() {
		defer close(done)
		var latest *locks.Hold
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			var first *locks.Hold
			for i, e := range electors {
				h := e.Held(lock)
				if h == nil {
					continue
				}
				if latest == nil || h.Token > latest.Token {
					latest = h
				} else if h != latest {
					t.Errorf("elector %d holds the lock with token %d after token %d", i, h.Token, latest.Token)
				}
				// The first one held it before this one was asked, and does so after.
				if first != nil {
					for _, other := range electors[:i] {
						if other.Held(lock) == first {
							t.Errorf("two hold the lock: with the tokens %d and %d", first.Token, h.Token)
						}
					}
				}
				first = h
			}
			select {
			case holds <- first:
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-done })
	return func() *locks.Hold { return <-holds }
}

// TestLockRestored: there is one holder at most, and tokens grow, when etcd is restored from a backup of before the lock passed on.
func TestLockRestored(t *testing.T) {
	t.Parallel()
	for _, bump := range []uint64{0, 1_000_000} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("bump-%d-late-%v", bump, late), func(t *testing.T) {
				t.Parallel()
				etcd := startOne(t)
				lock := plugin.Name{Type: "Echo", Name: "one"}
				a := compete(t, connect(t, etcd.client), "a", lock)
				holding := oneHolder(t, lock, a)
				eventually(t, "a holds the lock", func() bool { return holding() != nil })
				b, c := compete(t, connect(t, etcd.client), "b", lock), compete(t, connect(t, etcd.client), "c", lock)
				holding = oneHolder(t, lock, a, b, c)
				if !late { // else the backup does not know those that wait
					eventually(t, "all stand for the lock", func() bool { return candidates(t, etcd) == 3 })
				}
				first := holding()
				backup := etcd.save()
				eventually(t, "all stand for the lock", func() bool { return candidates(t, etcd) == 3 })
				a.Stand(nil)
				eventually(t, "another one holds the lock", func() bool { h := holding(); return h != nil && h != first })
				a.Stand([]plugin.Name{lock})
				eventually(t, "all stand for the lock", func() bool { return candidates(t, etcd) == 3 })
				var second *locks.Hold
				eventually(t, "there is a holder", func() bool { second = holding(); return second != nil })
				etcd.restore(backup, bump)
				time.Sleep(5 * time.Second) // two leases and more: whoever will take it has it
				eventually(t, "there is a holder", func() bool { return holding() != nil })
				for _, e := range []*locks.Elector{a, b, c} { // and the tokens grow on
					if h := e.Held(lock); h != nil {
						e.Stand(nil)
						eventually(t, "the next one holds the lock", func() bool { now := holding(); return now != nil && now != h })
						break
					}
				}
				if h := holding(); h != nil && h.Token <= second.Token {
					t.Errorf("the token was %d and is %d", second.Token, h.Token)
				}
			})
		}
	}
}

// TestBaseRemoved: tokens grow although the base on which the last one stood is removed by the node that wrote it.
func TestBaseRemoved(t *testing.T) {
	t.Parallel()
	etcd := startOne(t)
	admin := etcd.admin()
	lock := plugin.Name{Type: "Echo", Name: "one"}
	a := compete(t, connect(t, etcd.client), "a", lock)
	eventually(t, "a holds the lock", func() bool { return a.Held(lock) != nil })
	b := compete(t, connect(t, etcd.client), "b", lock)
	eventually(t, "both stand for the lock", func() bool { return candidates(t, etcd) == 2 })
	time.Sleep(3 * time.Second) // b may take it from here on
	holder, other := a, b
	var last int64
	for i := range 6 {
		base := keys.Space{}.TokenBaseKey("c")
		do(t, "write a base", func(ctx context.Context) error {
			_, err := admin.Put(ctx, base, fmt.Sprint(int64(i+1)<<40))
			return err
		})
		for range 2 { // the first one takes it with the base, the second one after it is gone
			holder.Stand(nil)
			eventually(t, "the other one holds the lock", func() bool { return other.Held(lock) != nil })
			do(t, "remove the base", func(ctx context.Context) error { _, err := admin.Delete(ctx, base); return err })
			if h := other.Held(lock); h != nil {
				if h.Token <= last {
					t.Errorf("the token was %d and is %d", last, h.Token)
				}
				last = h.Token
			}
			holder.Stand([]plugin.Name{lock})
			eventually(t, "both stand for the lock", func() bool { return candidates(t, etcd) == 2 })
			holder, other = other, holder
		}
	}
}

// TestRestoreIsLogged: a node that sees revisions go back logs that etcd was restored. One that takes over the base of another does not, nor does
// any after a restore with a bump that is great enough.
func TestRestoreIsLogged(t *testing.T) {
	t.Parallel()
	for bump, want := range map[uint64]bool{0: true, 1_000_000: false} {
		t.Run(fmt.Sprint("bump-", bump), func(t *testing.T) {
			t.Parallel()
			etcd, lock := startOne(t), plugin.Name{Type: "Echo", Name: "one"}
			var sees, comes logBuffer
			a := competeAnd(t, connect(t, etcd.client), "a", lock, &sees)
			eventually(t, "a holds the lock", func() bool { return a.Held(lock) != nil })
			backup, admin := etcd.save(), etcd.admin()
			for range 50 {
				do(t, "write", func(ctx context.Context) error { _, err := admin.Put(ctx, "other", "x"); return err })
			}
			before := a.Held(lock)
			eventually(t, "the node has seen it", func() bool { // a token is a revision, and grows
				a.Stand(nil)
				eventually(t, "it lets go", func() bool { return a.Held(lock) == nil })
				a.Stand([]plugin.Name{lock})
				eventually(t, "it holds the lock", func() bool { return a.Held(lock) != nil })
				now := a.Held(lock)
				return now != nil && before != nil && now.Token > before.Token+50
			})
			etcd.restore(backup, bump)
			last := a.Held(lock)
			eventually(t, "it holds the lock again", func() bool { now := a.Held(lock); return now != nil && now != last })
			b := competeAnd(t, connect(t, etcd.client), "b", lock, &comes)
			eventually(t, "both stand for the lock", func() bool { return candidates(t, etcd) == 2 })
			a.Stand(nil)
			eventually(t, "b holds the lock", func() bool { return b.Held(lock) != nil })
			const said = "etcd was restored or replaced"
			if strings.Contains(sees.String(), said) != want || strings.Contains(comes.String(), said) {
				t.Errorf("the node that was there logs:\n%s\nthe other one:\n%s", &sees, &comes)
			}
		})
	}
}
