package device

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// Allocation holds the devices of one resource that are allocated to one owner.
type Allocation struct {
	Resource string `json:"resource"`
	Owner    string `json:"owner"`
	// Devices are their IDs, in order.
	Devices []string `json:"devices"`
	// Time is when they were allocated.
	Time time.Time `json:"time"`
	// Answer is what the plugin answered then, or when it was asked again after a reboot.
	Answer Answer `json:"answer"`
}

// wish is what was asked for. Two that are equal are the same request.
type wish struct {
	Count  int      `json:"count"`
	Wanted []string `json:"wanted,omitempty"` // in order
}

func (w wish) equal(other wish) bool {
	return w.Count == other.Count && slices.Equal(w.Wanted, other.Wanted)
}

// allocation is an Allocation that exists, comes or goes. Handler.mu guards it; what is not under "state" changes only while its caller is
// the one who is busy with it. The store has its exported fields: more may be added, and those that are unknown are ignored.
type allocation struct {
	Allocation // its devices are held in resource.holders
	wish
	PreStart bool   `json:"preStart,omitempty"` // the plugin wants to prepare the devices before each start
	Boot     string `json:"boot,omitempty"`     // the ID of the boot in which the plugin answered

	// The state. An allocation that is neither given nor busy is one that the store may have, although it was not made.
	given bool          // it is in the store
	busy  chan struct{} // closed when the caller that is busy with it has finished; nil if there is none
}

// take makes the caller the one who is busy with the allocation, or returns what to wait for.
func (a *allocation) take() (busy <-chan struct{}) {
	if a.busy != nil {
		return a.busy
	}
	a.busy = make(chan struct{})
	return nil
}

func (a *allocation) public() Allocation {
	public := a.Allocation
	public.Devices = slices.Clone(public.Devices)
	answer := &public.Answer
	answer.Envs, answer.Annotations = maps.Clone(answer.Envs), maps.Clone(answer.Annotations)
	answer.Mounts, answer.Devices = slices.Clone(answer.Mounts), slices.Clone(answer.Devices)
	answer.CDIDevices = slices.Clone(answer.CDIDevices)
	return public
}

const allocationPrefix = "allocation/"

// key returns the key in the store. It is unique: a resource name has no space.
func (a *allocation) key() string { return allocationPrefix + a.Resource + " " + a.Owner }

func (h *Handler) load() error {
	return h.store.ForEach(func(key string, value []byte) error {
		if !strings.HasPrefix(key, allocationPrefix) {
			return nil
		}
		if err := h.restore(key, value); err != nil {
			return fmt.Errorf("the record of allocation %s is damaged: %w; it was left as it is", untrusted.Quote(key), err)
		}
		return nil
	})
}

func (h *Handler) restore(key string, value []byte) error {
	a := &allocation{given: true}
	if err := json.Unmarshal(value, a); err != nil {
		return err
	}
	slices.Sort(a.Devices)
	if a.key() != key || len(a.Devices) == 0 {
		return fmt.Errorf("it is that of %s and has %d devices", untrusted.Quote(a.key()), len(a.Devices))
	}
	r := h.resource(a.Resource)
	for _, id := range a.Devices {
		if other := r.holders[id]; other != nil {
			return fmt.Errorf("device %s has another owner: %s", untrusted.Quote(id), untrusted.Quote(other.Owner))
		}
		r.holders[id] = a
	}
	r.allocations[a.Owner] = a
	return nil
}
