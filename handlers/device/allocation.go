package device

import (
	"maps"
	"slices"
	"time"
)

// Allocation is the devices of one resource that an owner has.
type Allocation struct {
	Resource, Owner string
	// Devices are their IDs, in order.
	Devices []string
	// Time is when they were allocated.
	Time time.Time
	// Answer is what the plugin said then.
	Answer Answer
}

// allocation is an Allocation that exists, comes or goes. Handler.mu guards it; what is not under "state" changes only while its caller is
// the one who is busy with it.
type allocation struct {
	resource, owner string
	wanted          wish
	devices         []string // in order; held in resource.holders
	time            time.Time
	answer          Answer
	preStart        bool // the plugin wants to prepare the devices before each start

	// The state. An allocation that is neither given nor busy is one that the store may have, although it was not made.
	given bool          // it is in the store
	busy  chan struct{} // closed when the caller that is busy with it has finished; nil if there is none
}

// wish is what was asked for. Two that are equal are the same request.
type wish struct {
	count   int
	devices []string // in order
}

func (w wish) equal(other wish) bool {
	return w.count == other.count && slices.Equal(w.devices, other.devices)
}

// public returns a copy that belongs to a caller.
func (a *allocation) public() Allocation {
	answer := a.answer
	answer.Envs, answer.Annotations = maps.Clone(answer.Envs), maps.Clone(answer.Annotations)
	answer.Mounts, answer.Devices = slices.Clone(answer.Mounts), slices.Clone(answer.Devices)
	answer.CDIDevices = slices.Clone(answer.CDIDevices)
	return Allocation{Resource: a.resource, Owner: a.owner, Devices: slices.Clone(a.devices), Time: a.time, Answer: answer}
}
