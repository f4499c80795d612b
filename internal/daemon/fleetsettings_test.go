package daemon

import (
	"testing"
	"time"
)

// TestFleetSettings: nodes whose settings are alike publish the same text.
func TestFleetSettings(t *testing.T) {
	for want, c := range map[string]fleetConfig{
		`{"exclusive":["a","b"],"presence":"10s"}`: {Exclusive: []string{"b", "a", "b"}},
		`{"exclusive":[],"presence":"20s"}`:        {Presence: 20 * time.Second},
	} {
		if got := c.settings(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
