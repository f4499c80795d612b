package quota_test

import (
	"testing"

	"github.com/patchbay-dev/patchbay/internal/quota"
)

func TestPool(t *testing.T) {
	const root, self = 0, 1
	p := quota.New(quota.Reserved(10, 35), func(uid uint32) bool { return uid == root || uid == self })
	take := func(uid uint32, n int, ok, first bool) {
		t.Helper()
		if refusal := p.Take(uid, n); (refusal == nil) != ok || refusal != nil && refusal.First != first {
			t.Errorf("user %d takes %d: %+v, want %v, %v", uid, n, refusal, ok, first)
		}
	}
	take(2, 10, true, false)
	take(2, 1, false, true)
	take(2, 1, false, false)
	take(3, 10, true, false)
	take(4, 5, true, false)
	take(4, 1, false, true) // the rest is for the privileged
	take(root, 8, true, false)
	take(self, 3, false, true) // of whom two together may have less than each
	take(self, 2, true, false)
	p.Release(2, 4)
	take(2, 5, false, false)
	p.Release(2, 1)
	take(2, 6, false, true)
	take(2, 1, true, false)
	p.Add(5, 100)
	take(root, 1, false, true)
	p.Release(5, 100)
	if p.Sum() != 31 {
		t.Errorf("all have %d", p.Sum())
	}
}

func TestPoolWithoutReserve(t *testing.T) {
	const root = 0
	p := quota.New(quota.Limits{User: 10, Total: 15}, func(uid uint32) bool { return uid == root })
	for uid, n := range map[uint32]int{2: 10, 3: 5, root: 100} {
		if refusal := p.Take(uid, n); refusal != nil {
			t.Errorf("user %d cannot take %d: %+v", uid, n, refusal)
		}
	}
	for uid, want := range map[uint32]quota.Refusal{
		2: {Reason: quota.User, First: true, OfUser: 10, OfAll: 15}, 3: {Reason: quota.Total, First: true, OfUser: 5, OfAll: 15},
	} {
		if refusal := p.Take(uid, 1); refusal == nil || *refusal != want {
			t.Errorf("user %d: %+v, want %+v", uid, refusal, want)
		}
	}
	if p.Take(2, 0) != nil {
		t.Error("there is no room for nothing")
	}
	p.Release(root, 100)
	if p.Held(root) != 0 || p.Sum() != 15 {
		t.Errorf("an exempt user holds %d, and all users %d", p.Held(root), p.Sum())
	}
}

// TestRefusalsAreForgotten: a user that holds nothing is refused for the first time again after half of the total was free.
func TestRefusalsAreForgotten(t *testing.T) {
	p := quota.New(quota.Limits{User: 10, Total: 10}, nil)
	p.Add(2, 10)
	first := func(want bool) {
		t.Helper()
		if refusal := p.Take(3, 9); refusal == nil || refusal.First != want {
			t.Errorf("got %+v, want it to be the first: %v", refusal, want)
		}
	}
	first(true)
	p.Release(2, 4)
	first(false)
	p.Release(2, 1)
	first(true)
}

// TestTotalIsRefusedOnce: a user that takes and gives back a little while nothing is left is refused for the first time once.
func TestTotalIsRefusedOnce(t *testing.T) {
	p := quota.New(quota.Limits{User: 10, Total: 10}, nil)
	p.Add(2, 9)
	for i := range 3 {
		if refusal := p.Take(3, 1); refusal != nil {
			t.Fatalf("got %+v", refusal)
		}
		if refusal := p.Take(3, 1); refusal == nil || refusal.Reason != quota.Total || refusal.First != (i == 0) {
			t.Errorf("refusal %d is %+v", i, refusal)
		}
		p.Release(3, 1)
	}
	if p.Release(2, 9); p.Sum() != 0 {
		t.Errorf("%d are held after all was given back", p.Sum())
	}
}

func TestGrant(t *testing.T) {
	p := quota.New(quota.Limits{User: 10, Total: 15}, nil)
	g := p.Grant(2)
	if g.Take(8) != nil || g.Take(3) == nil || p.Held(2) != 8 {
		t.Errorf("%d are held, want 8", p.Held(2))
	}
	if g.Add(3); p.Held(2) != 11 {
		t.Errorf("%d are held, want 11", p.Held(2))
	}
	g.Release()
	g.Release()
	if g.Take(1) != nil || p.Held(2) != 1 {
		t.Errorf("%d are held, want 1", p.Held(2))
	}
	g.End()
	if g.Add(1); g.Take(20) != nil || p.Sum() != 0 {
		t.Errorf("%d are held after the end", p.Sum())
	}
	(*quota.Grant)(nil).Release()
}
