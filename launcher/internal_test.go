package launcher

import (
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/host"
)

// TestGrace: a plugin gets SIGTERM before it is killed, whatever its calls behind a front take of the time that it has.
func TestGrace(t *testing.T) {
	for name, plugin := range map[string]Plugin{
		"at its socket": {}, "on demand": {OnDemand: true}, "handed over": {Upgrade: UpgradeHandover},
		"short": {OnDemand: true, StopTimeout: 3 * time.Millisecond},
	} {
		grace, limit := plugin.grace(), plugin.stopTimeout()
		calls := time.Duration(0)
		if plugin.fronted() {
			calls = limit / 2 // see process.Terminate
		}
		if grace.Stdin <= 0 || calls+grace.Stdin >= limit || grace.Stdin+grace.Term != limit {
			t.Errorf("%s: after %v for its calls it has %v until SIGTERM and %v until it is killed, of %v", name, calls, grace.Stdin, grace.Term, limit)
		}
	}
}

// TestLimited: what is not given to calls through fronts is told.
func TestLimited(t *testing.T) {
	var told []string
	l := New(Config{Host: &host.Host{}, Limited: func(uid uint32, reason string, first bool) {
		if first && uid == 60001 {
			told = append(told, reason)
		}
	}})
	for {
		if _, err := l.budget.Begin(60001); err != nil {
			break
		}
	}
	if _, err := l.budget.Begin(60001); err == nil || len(told) != 1 || told[0] != "userCalls" {
		t.Errorf("%v; told %v", err, told)
	}
}
