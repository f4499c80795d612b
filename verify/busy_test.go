package verify

import (
	"strings"
	"testing"
	"time"
)

// TestBusy: a failure while the plugin had no processor is inconclusive; everything else stays as it is.
func TestBusy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o      outcome
		waited time.Duration
		want   Status
	}{
		{fail("late"), starved, Inconclusive}, {fail("late"), starved - 1, Failed}, {pass("well"), starved, Passed}, {warn("odd"), starved, Warned},
		{notApplicable("no"), starved, NotApplicable},
	} {
		got := busy(c.o, func() time.Duration { return c.waited })
		says := strings.Contains(got.reason, "there was no processor for its processes")
		if got.status != c.want || says != (c.want == Inconclusive) {
			t.Errorf("%v after %v is %+v", c.o, c.waited, got)
		}
	}
}
