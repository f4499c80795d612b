package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// drainCondition is the name of the condition of a drained node; client.WaitDrained reads it in the records of other nodes.
	drainCondition = "fleet-drain"
	// drainQuiet is how long other nodes must have left a drained node alone: it learns of the drain before some of them do.
	drainQuiet = 5 * time.Second
	// drainLook is how often a drained node is judged.
	drainLook = time.Second
)

// drain knows whether the node is drained, and whether it still serves the fleet.
type drain struct {
	holdsLock func() bool
	changed   chan struct{} // gets a value after set

	mu     sync.Mutex
	cordon *fleet.Cordon // nil until it is known
	calls  int           // of other nodes, in progress
	quiet  time.Time     // when the last of them ended, or the node was drained
}

func newDrain(holdsLock func() bool) *drain {
	return &drain{holdsLock: holdsLock, changed: make(chan struct{}, 1)}
}

// set records the cordon of the node.
func (d *drain) set(c fleet.Cordon) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cordon == nil || *d.cordon != c {
		d.cordon, d.quiet = &c, time.Now()
		fleet.Notify(d.changed)
	}
}

// isOpen reports whether the node is known not to be drained.
func (d *drain) isOpen() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cordon != nil && !d.cordon.Drained
}

// begin counts a call of another node; the caller calls end when it has ended.
func (d *drain) begin() (end func()) {
	count := func(n int) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.calls, d.quiet = d.calls+n, time.Now()
	}
	count(1)
	return func() { count(-1) }
}

// inProgress returns the number of calls of other nodes in progress.
func (d *drain) inProgress() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

// condition is degraded while the drained node still serves the fleet. Since is when it was drained, also if it is not degraded, so that
// readers know to which drain the condition belongs. drained is false for a node that is not drained: it has no such condition.
func (d *drain) condition() (c plugin.Condition, drained bool) {
	holds := d.holdsLock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cordon == nil || !d.cordon.Drained {
		return c, false
	}
	c = plugin.Condition{Name: drainCondition, Since: d.cordon.Since}
	switch {
	case holds:
		c.Message = "this node is drained and still holds a lock"
	case d.calls > 0 || time.Since(d.quiet) < drainQuiet:
		c.Message = fmt.Sprintf("this node is drained and has served calls of other nodes in the last %v; calls that name it, or a plugin that "+
			"no other node has, still reach it", drainQuiet)
	default:
		c.OK = true
	}
	return c, true
}

// watch announces changes of the condition until ctx ends.
func (d *drain) watch(ctx context.Context, announce func(plugin.Condition)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for degraded := false; ; {
		select {
		case <-d.changed:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		c, drained := d.condition()
		if c.Name = drainCondition; degraded == (c.OK || !drained) {
			degraded = !degraded
			c.OK = !degraded
			announce(c)
		}
		if drained { // other nodes may call it again
			timer.Reset(drainLook)
		}
	}
}
