package supervise

import "github.com/patchbay-dev/patchbay/internal/launch/machine"

// ObserveTransitions has f told of each transition.
func (u *Unit) ObserveTransitions(f func(machine.Ref, machine.Transition)) { u.machine.Entered = f }
