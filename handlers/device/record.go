package device

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/internal/foreign"
)

// The keys of the store: an allocation has that of its resource and owner, an endpoint of a plugin that registered the older way its name.
const (
	allocationPrefix = "allocation/"
	endpointPrefix   = "endpoint/"
)

// key is one of a kind: a resource name has no space.
func (a *allocation) key() string { return allocationPrefix + a.resource + " " + a.owner }

// allocationRecord is the form of an allocation in the store. Fields may be added; those that are unknown are ignored.
type allocationRecord struct {
	Resource string    `json:"resource"`
	Owner    string    `json:"owner"`
	Count    int       `json:"count"`
	Wanted   []string  `json:"wanted,omitempty"`
	Devices  []string  `json:"devices"`
	Time     time.Time `json:"time"`
	Answer   Answer    `json:"answer"`
	PreStart bool      `json:"preStart,omitempty"`
}

func (a *allocation) record() ([]byte, error) {
	return json.Marshal(allocationRecord{
		Resource: a.resource, Owner: a.owner, Count: a.wanted.count, Wanted: a.wanted.devices, Devices: a.devices, Time: a.time,
		Answer: a.answer, PreStart: a.preStart,
	})
}

// endpointRecord is the form of a plugin that registered the older way, so that it is taken into use again when the host comes back.
type endpointRecord struct {
	Resource string `json:"resource"`
	// Socket is the identity of its socket.
	Socket    string `json:"socket"`
	PreStart  bool   `json:"preStart,omitempty"`
	Preferred bool   `json:"preferred,omitempty"`
}

// load restores the allocations and returns the endpoints by name.
func (h *Handler) load() (map[string]endpointRecord, error) {
	endpoints := map[string]endpointRecord{}
	err := h.store.ForEach(func(key string, value []byte) error {
		var err error
		switch {
		case strings.HasPrefix(key, allocationPrefix):
			err = h.restore(key, value)
		case strings.HasPrefix(key, endpointPrefix):
			var r endpointRecord
			// One that cannot be read is one less: its plugin registers again.
			if json.Unmarshal(value, &r) == nil {
				endpoints[strings.TrimPrefix(key, endpointPrefix)] = r
			}
		}
		if err != nil {
			return fmt.Errorf("the record of allocation %s is damaged: %w; it was left as it is", foreign.Quote(key), err)
		}
		return nil
	})
	return endpoints, err
}

func (h *Handler) restore(key string, value []byte) error {
	var stored allocationRecord
	if err := json.Unmarshal(value, &stored); err != nil {
		return err
	}
	slices.Sort(stored.Devices)
	a := &allocation{
		resource: stored.Resource, owner: stored.Owner, wanted: wish{stored.Count, stored.Wanted}, devices: stored.Devices,
		time: stored.Time, answer: stored.Answer, preStart: stored.PreStart, given: true,
	}
	if a.key() != key || len(a.devices) == 0 {
		return fmt.Errorf("it is that of %s and has %d devices", foreign.Quote(a.key()), len(a.devices))
	}
	r := h.resources[a.resource]
	if r == nil {
		r = newResource(a.resource)
		h.resources[a.resource] = r
	}
	for _, id := range a.devices {
		if other := r.holders[id]; other != nil {
			return fmt.Errorf("device %s has another owner: %s", foreign.Quote(id), foreign.Quote(other.owner))
		}
		r.holders[id] = a
	}
	r.allocations[a.owner] = a
	return nil
}
