package supervise

import "github.com/patchbay-dev/patchbay/internal/launch/machine"

// ObserveTransitions calls f with each transition.
func (u *Unit) ObserveTransitions(f func(machine.Ref, machine.Transition)) { u.machine.Entered = f }
