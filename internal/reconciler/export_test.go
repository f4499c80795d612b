package reconciler

import (
	"context"

	"github.com/patchbay-dev/patchbay/internal/discover/clock"
	"github.com/patchbay-dev/patchbay/internal/discover/machine"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Drive takes the place of Run for one who has no goroutines: turn does what Run would be woken for, and says whether there was something;
// stop does what Run does at its end.
func (r *Reconciler) Drive(ctx context.Context) (turn func() bool, stop func()) {
	changes := r.begin(ctx)
	turn = func() bool {
		// Of two that are ready a select would take any.
		changed, woken := received(changes.C()), received(r.wake)
		if changed || woken {
			r.processInputs(ctx)
		}
		return changed || woken
	}
	return turn, func() {
		changes.Close()
		r.stop()
	}
}

// GatherFrom has as few as many that wait for being saved wait for others. It is called before Drive.
func (r *Reconciler) GatherFrom(many int) { r.manySaves = many }

func received(from <-chan struct{}) bool {
	select {
	case <-from:
		return true
	default:
		return false
	}
}

// Audit has the machine's transitions and steps told, with the lock of the reconciler held. Either may be nil.
func (r *Reconciler) Audit(entered func(machine.Ref, machine.Row), stepped func(machine.Input, []machine.Effect)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.machine.Entered, r.machine.Stepped = entered, stepped
}

// Size is how much is held: by the machine, for instances, of timers, and what waits.
func (r *Reconciler) Size() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.machine.Size() + len(r.resources) + len(r.timers) + len(r.inbox) + len(r.queue)
}

// Urge tries at once what waits of one name.
func (r *Reconciler) Urge(ptype, name string) {
	r.send(machine.Urged{Key: plugin.Name{Type: ptype, Name: name}})
}

// Release has a name kept for nobody.
func (r *Reconciler) Release(ptype, name string) {
	r.send(machine.Released{Key: plugin.Name{Type: ptype, Name: name}})
}

// NewAt is New at a pace of the caller's.
func NewAt(cfg Config, at clock.Pace) *Reconciler { return newAt(cfg, at) }
