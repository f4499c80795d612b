package reconciler_test

import (
	"testing"
	"time"
)

// TestClockTime: a time of the simulation is what the machine's clock makes when it is set back.
func TestClockTime(t *testing.T) {
	before := clockTime(simEpoch, time.Hour)
	after := clockTime(simEpoch.Add(-2*time.Hour), time.Hour+time.Second)
	if passed := after.Sub(before); passed != time.Second || !after.After(before) {
		t.Errorf("%v have passed", passed)
	}
	if passed := after.Round(0).Sub(before.Round(0)); passed != -2*time.Hour {
		t.Errorf("the wall clock was set by %v", passed)
	}
	if !after.Round(0).Equal(simEpoch.Add(-2 * time.Hour)) {
		t.Errorf("it is %v", after)
	}
}
