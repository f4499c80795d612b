package reconciler

import (
	"context"

	"github.com/patchbay-dev/patchbay/internal/discover/machine"
)

// Drive takes the place of Run for one who has no goroutines: turn does what Run would be woken for, and says whether there was something;
// stop does what Run does at its end.
func (r *Reconciler) Drive(ctx context.Context) (turn func() bool, stop func()) {
	changes := r.cfg.Desired.Changes()
	r.begin(ctx)
	turn = func() bool {
		select {
		case <-changes.C():
		case <-r.wake:
		default:
			return false
		}
		r.turn(ctx, changes)
		return true
	}
	return turn, func() {
		changes.Close()
		r.stop()
	}
}

// Audit has the machine count the rows of its table that it takes. What it returns says, afterwards, which transitions are in no row.
func (r *Reconciler) Audit(taken map[machine.Row]int) (amiss func() []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.machine.Taken = taken
	return func() []string {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.machine.Amiss
	}
}
