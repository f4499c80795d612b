package reconciler

import "github.com/patchbay-dev/patchbay/internal/discover/machine"

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
