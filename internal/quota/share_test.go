package quota_test

import (
	"testing"

	"github.com/patchbay-dev/patchbay/internal/quota"
)

func TestPool(t *testing.T) {
	const root, self = 0, 1
	p := quota.New(10, 35, func(uid uint32) bool { return uid == root || uid == self })
	take := func(uid uint32, n int, ok, first bool) {
		t.Helper()
		if gotOK, gotFirst := p.Take(uid, n); gotOK != ok || gotFirst != first {
			t.Errorf("user %d takes %d: %v, %v, want %v, %v", uid, n, gotOK, gotFirst, ok, first)
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
	p.Give(2, 4)
	take(2, 5, false, false)
	p.Give(2, 1)
	take(2, 6, false, true)
	take(2, 1, true, false)
	p.Add(5, 100)
	take(root, 1, false, true)
	p.Give(5, 100)
	if p.Sum() != 31 {
		t.Errorf("all have %d", p.Sum())
	}
}

func TestPoolWithoutReserve(t *testing.T) {
	p := quota.New(10, 15, nil)
	for uid, n := range map[uint32]int{2: 10, 3: 5} {
		if ok, _ := p.Take(uid, n); !ok {
			t.Errorf("user %d cannot take %d", uid, n)
		}
	}
	if ok, first := p.Take(4, 1); ok || !first {
		t.Errorf("beyond the total: %v, %v", ok, first)
	}
}
