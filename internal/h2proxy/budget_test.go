package h2proxy

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestBudget(t *testing.T) {
	t.Parallel()
	var refused []string
	b := NewBudget(Limits{UserBytes: 40, Bytes: 80, UserCalls: 2, Calls: 3}, 7, func(uid uint32, why Reason, first bool) {
		refused = append(refused, fmt.Sprint(uid, " ", why, " ", first))
	})
	take := func(uid uint32, n int, want bool) {
		t.Helper()
		if got := b.take(uid, n); got != want {
			t.Errorf("user %d takes %d: %v", uid, n, got)
		}
	}
	take(1, 40, true)
	take(1, 1, false)
	take(1, 1, false)
	take(2, 20, true)
	take(2, 1, false) // a quarter is kept for root and the host
	take(7, 20, true)
	if !b.isTight(2) || b.Bytes() != 80 {
		t.Errorf("it is not tight with %d", b.Bytes())
	}
	take(2, 0, true) // what needs no room has it
	take(1, 0, true)
	take(9, 0, true)
	b.give(1, 20)
	take(1, 21, false)
	b.give(1, 20)
	b.give(2, 20)
	b.give(7, 20)
	for _, uid := range []uint32{1, 1, 1, 2, 2, 7, 0} {
		_, _ = b.Begin(uid)
	}
	want := "1 user true, 1 user false, 2 total true, 1 user true, 1 userCalls true, 2 calls true"
	if got := strings.Join(refused, ", "); got != want {
		t.Errorf("refused: %s\nwant:    %s", got, want)
	}
	for _, uid := range []uint32{1, 1, 2, 7, 0} {
		b.calls.Release(uid, 1)
	}
	if b.Bytes() != 0 || b.calls.Sum() != 0 {
		t.Errorf("%d bytes and %d calls are left", b.Bytes(), b.calls.Sum())
	}
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "1n", 1: "1n", 99_999_999: "99999999n", time.Second: "1000000u", time.Hour: "3600000m", 1 << 62: "76861433M",
	} {
		text := EncodeTimeout(d)
		back, err := decodeTimeout(text)
		if text != want || err != nil || back > max(d, 1) || back < d-d/1000 {
			t.Errorf("%v is %s, want %s, and back %v", d, text, want, back)
		}
	}
	for _, text := range []string{"", "1", "n", "1x", "123456789n", "-1n", "1.5S"} {
		if d, err := decodeTimeout(text); err == nil {
			t.Errorf("%q is %v", text, d)
		}
	}
	if d, err := decodeTimeout("99999999H"); err != nil || d <= 0 {
		t.Errorf("the longest is %v", d)
	}
}
