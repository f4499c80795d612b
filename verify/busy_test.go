package verify

import (
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/verify/internal/runner"
)

// TestBusy: a failure while the plugin had no processor is inconclusive; other outcomes do not change.
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

// TestAppearanceOnABusyMachine checks PRC002: if only the first start was slow, it is inconclusive when the plugin had no processor.
func TestAppearanceOnABusyMachine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		first, waited, last time.Duration
		refused, starts     int
		want                Status
	}{
		{first: insistence, waited: insistence, starts: 2, want: Inconclusive},
		{first: insistence, waited: insistence, last: unnoticed, refused: 9, starts: 3, want: Inconclusive},
		{first: insistence, waited: insistence - 1, starts: 2, want: Warned},
		{first: insistence, waited: insistence, last: insistence, refused: 9, starts: maxStarts, want: Failed},
		{first: unnoticed, waited: insistence, last: unnoticed, refused: 1, starts: 1, want: Warned},
		{first: unnoticed - 1, last: unnoticed - 1, refused: 1, starts: 1, want: Passed},
		{starts: 1, want: Passed},
	} {
		got := judgeAppearance(c.first, c.waited, &runner.Appearance{Window: c.last, Refused: c.refused}, c.starts)
		if got.status != c.want || got.reason == "" {
			t.Errorf("%+v: got %+v", c, got)
		}
	}
}
