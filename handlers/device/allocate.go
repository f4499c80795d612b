package device

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// Request describes the devices to allocate and their owner.
type Request struct {
	// Resource is the name of the plugin, for example example.com/gpu.
	Resource string
	// Owner is who gets the devices: any printable name of the caller's choice, of up to 253 bytes.
	Owner string
	// Count is how many devices; 0 for as many as there are in Devices, or else 1.
	Count int
	// Devices must be among them.
	Devices []string
}

// wish checks the request and returns it in a form for comparisons.
func (q Request) wish(limit int) (wish, error) {
	w := wish{Count: q.Count, Wanted: slices.Sorted(slices.Values(q.Devices))}
	if w.Count == 0 {
		w.Count = max(len(w.Wanted), 1)
	}
	switch {
	case w.Count < 0:
		return wish{}, fmt.Errorf("%d devices cannot be allocated: %w", w.Count, ErrInvalid)
	case w.Count > limit:
		return wish{}, fmt.Errorf("%d devices are more than the %d that a resource can have: %w", w.Count, limit, ErrInvalid)
	case len(w.Wanted) > w.Count:
		return wish{}, fmt.Errorf("%d devices are named and %d wanted: %w", len(w.Wanted), w.Count, ErrInvalid)
	case len(slices.Compact(slices.Clone(w.Wanted))) < len(w.Wanted):
		return wish{}, fmt.Errorf("a device is named twice: %w", ErrInvalid)
	}
	for _, id := range w.Wanted {
		if err := untrusted.Required("the ID of a device", id, maxDeviceID); err != nil {
			return wish{}, fmt.Errorf("%w: %w", err, ErrInvalid)
		}
	}
	return w, nil
}

var errNoResource = fmt.Errorf("the resource: %w: no device plugin of that name has registered", ErrNotFound)

func checkNames(resource, owner string) error {
	if err := cmp.Or(checkResource(resource), untrusted.Required("the owner", owner, maxOwner)); err != nil {
		return fmt.Errorf("%w: %w", err, ErrInvalid)
	}
	return nil
}

// Allocate allocates devices to an owner: first the devices that the plugin prefers, if any, then others in the order of their IDs. When it
// returns, the allocation is durable; only [Handler.Release] ends it. After an error nothing is allocated.
//
// An owner has at most one allocation of a resource. The same request again returns it, also after a restart, so that a caller who got no
// answer can ask again; a request for something else is [ErrConflict]. After a reboot Allocate calls the plugin again for the same devices,
// since their preparation may be lost. If a plugin prepares devices before each start of their owner (PreStartContainer), each Allocate
// calls it, so call Allocate before each start.
//
// It blocks for up to three calls to the plugin, and for another call for the same owner. ctx ends that.
func (h *Handler) Allocate(ctx context.Context, request Request) (Allocation, error) {
	allocation, err := h.allocate(ctx, request)
	if err != nil {
		return Allocation{}, fmt.Errorf("cannot allocate %s for %s: %w", untrusted.Quote(request.Resource), untrusted.Quote(request.Owner), err)
	}
	return allocation, nil
}

func (h *Handler) allocate(ctx context.Context, request Request) (Allocation, error) {
	wanted, err := request.wish(h.MaxDevices)
	if err != nil {
		return Allocation{}, err
	}
	ctx, end, err := h.begin(ctx, request.Resource, request.Owner)
	if err != nil {
		return Allocation{}, err
	}
	defer end()
	a, p, err := h.claim(request, wanted)
	if err != nil {
		return Allocation{}, err
	}
	defer p.done()
	defer h.notify()
	if a.given {
		return h.again(ctx, a, p, wanted)
	}
	if err := h.give(ctx, a, p); err != nil {
		h.free(a)
		return Allocation{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	a.given = true
	return a.public(), nil
}

type ownerKey struct{ resource, owner string }

// begin is enter for a call for the allocation of an owner. It waits until no other one for it runs, and others wait until the caller calls
// end.
func (h *Handler) begin(ctx context.Context, resource, owner string) (bounded context.Context, end func(), err error) {
	if err := checkNames(resource, owner); err != nil {
		return nil, nil, err
	}
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	unlock, err := h.owners.Lock(ctx, ownerKey{resource, owner})
	if err != nil {
		leave()
		return nil, nil, fmt.Errorf("another call for it has not ended: %w", err)
	}
	return ctx, func() { unlock(); leave() }, nil
}

// claim returns the allocation of an owner, and creates it if there is none. The caller is between begin and end, and calls done for the
// plugin, which is nil if none is available.
func (h *Handler) claim(request Request, wanted wish) (*allocation, *devicePlugin, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.resources[request.Resource]
	if r == nil {
		return nil, nil, errNoResource
	}
	p, a := r.available(), r.allocations[request.Owner]
	if a == nil {
		if p == nil {
			return nil, nil, ErrUnavailable
		}
		a = &allocation{Allocation: Allocation{Resource: request.Resource, Owner: request.Owner}}
		r.allocations[a.Owner] = a
	}
	if !a.given {
		a.wish = wanted
	}
	p.use()
	return a, p, nil
}

// free removes an allocation that was not given. If it may be in the store and cannot be deleted there, its devices stay reserved.
func (h *Handler) free(a *allocation) {
	if !a.Time.IsZero() { // it was to be stored
		if err := h.Store.Delete(a.key()); err != nil {
			h.Logger.Error("devices stay reserved, because it is not known whether their allocation was saved; release it",
				"resource", a.Resource, "owner", a.Owner, "error", err)
			return
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(a)
}

// remove takes an allocation out of its resource. The caller holds h.mu.
func (h *Handler) remove(a *allocation) {
	r := h.resources[a.Resource]
	for _, id := range a.Devices {
		delete(r.holders, id)
	}
	delete(r.allocations, a.Owner)
	h.tidy(r)
}

// adviceTimeout bounds how long an allocation waits for GetPreferredAllocation; after that it continues without preferences.
const adviceTimeout = time.Second

func (h *Handler) again(ctx context.Context, a *allocation, p *devicePlugin, wanted wish) (Allocation, error) {
	if !a.equal(wanted) {
		return Allocation{}, fmt.Errorf("it has %d devices since %s, and was asked for otherwise: %w; release it first", len(a.Devices),
			a.Time.Format(time.RFC3339), ErrConflict)
	}
	rebooted := a.Boot != sock.BootID()
	if p == nil && (rebooted || a.PreStart) {
		return Allocation{}, fmt.Errorf("the plugin is to prepare the devices again: %w", ErrUnavailable)
	}
	if rebooted {
		if err := h.makeReady(ctx, a, p); err != nil {
			return Allocation{}, err
		}
	} else if a.PreStart {
		if err := p.prepare(ctx, a.Devices); err != nil {
			return Allocation{}, refused(ctx, err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return a.public(), nil
}

// makeReady asks the plugin to prepare the devices of an allocation, and saves its answer. After an error the allocation is as before,
// except that the answer may be in the store.
func (h *Handler) makeReady(ctx context.Context, a *allocation, p *devicePlugin) error {
	answer, err := p.allocate(ctx, a.Devices)
	if err == nil && p.options.GetPreStartRequired() {
		err = p.prepare(ctx, a.Devices)
	}
	if err != nil {
		return refused(ctx, err)
	}
	h.mu.Lock()
	if a.Time.IsZero() {
		a.Time = time.Now().UTC()
	}
	ready := &allocation{Allocation: a.Allocation, wish: a.wish, PreStart: p.options.GetPreStartRequired(), Boot: sock.BootID()}
	h.mu.Unlock()
	ready.Answer = answer
	record, err := json.Marshal(ready)
	if err != nil {
		return err
	}
	if err := h.Store.Put(a.key(), record); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	a.Answer, a.PreStart, a.Boot = ready.Answer, ready.PreStart, ready.Boot
	return nil
}

// give chooses devices for a new allocation, calls the plugin to prepare them, and saves the allocation.
func (h *Handler) give(ctx context.Context, a *allocation, p *devicePlugin) error {
	if !a.Time.IsZero() { // an attempt before this one is in doubt
		if err := h.Store.Delete(a.key()); err != nil {
			return fmt.Errorf("an attempt before may have been saved: %w", err)
		}
		h.mu.Lock()
		for _, id := range a.Devices {
			delete(h.resources[a.Resource].holders, id)
		}
		a.Devices, a.Time = nil, time.Time{}
		h.mu.Unlock()
	}
	if p == nil {
		return ErrUnavailable
	}
	advised, cancel := context.WithTimeout(ctx, adviceTimeout)
	preferred := h.preference(advised, p, a.wish)
	cancel()
	if err := h.reserve(a, preferred); err != nil {
		return err
	}
	return h.makeReady(ctx, a, p)
}

func refused(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	if status.Code(err) == codes.Unavailable {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", ErrRefused, err)
}

// reserve chooses devices for an allocation, preferred ones first, and reserves them.
func (h *Handler) reserve(a *allocation, preferred []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.resources[a.Resource]
	chosen, err := r.choose(a.wish, preferred)
	if err != nil {
		return err
	}
	a.Devices = chosen
	for _, id := range chosen {
		r.holders[id] = a
	}
	h.tell()
	return nil
}

// choose returns free devices, in order. The caller holds the handler's lock.
func (r *resource) choose(w wish, preferred []string) ([]string, error) {
	for _, id := range w.Wanted {
		if err := r.checkFree(id); err != nil {
			return nil, err
		}
	}
	free := r.free()
	if len(free) < w.Count {
		return nil, fmt.Errorf("%d are wanted, and %d of %d are free and healthy: %w", w.Count, len(free), len(r.devices), ErrNotEnough)
	}
	open := make(map[string]bool, len(free))
	for _, id := range free {
		open[id] = true
	}
	chosen := make([]string, 0, w.Count)
	for _, ids := range [][]string{w.Wanted, preferred, free} {
		for _, id := range ids {
			if len(chosen) < w.Count && open[id] {
				chosen = append(chosen, id)
				open[id] = false
			}
		}
	}
	slices.Sort(chosen)
	return chosen, nil
}

func (r *resource) checkFree(id string) error {
	_, listed := r.devices[id]
	holder := r.holders[id]
	switch {
	case holder != nil:
		return fmt.Errorf("device %s is that of %s: %w", untrusted.Quote(id), untrusted.Quote(holder.Owner), ErrInUse)
	case !listed:
		return fmt.Errorf("device %s: %w", untrusted.Quote(id), ErrNotFound)
	case r.health(id) == Unhealthy:
		return fmt.Errorf("device %s: %w", untrusted.Quote(id), ErrUnhealthy)
	case r.health(id) != Healthy:
		return ErrUnavailable
	}
	return nil
}

// preference asks the plugin for its preferred devices. It returns none if the plugin does not support that or fails.
func (h *Handler) preference(ctx context.Context, p *devicePlugin, w wish) []string {
	if !p.options.GetGetPreferredAllocationAvailable() || w.Count == len(w.Wanted) {
		return nil
	}
	h.mu.Lock()
	var available []string
	if r := h.resources[p.resource]; r != nil { // nobody needs to have an allocation of it that would keep it
		if _, err := r.choose(w, nil); err == nil { // otherwise reserve says so
			available = r.free()
		}
	}
	h.mu.Unlock()
	if len(available) == 0 {
		return nil
	}
	preferred, err := p.prefer(ctx, available, w.Wanted, w.Count)
	if err != nil {
		h.Logger.Warn("a device plugin does not say which devices it prefers", "resource", p.resource, "error", err)
	}
	return preferred
}

// Preferred returns the free devices that the plugin prefers, in order; none if it has no preferences. It allocates nothing, and ignores
// the owner. It blocks for one call. Its errors match those of this package, as the errors of Allocate do.
func (h *Handler) Preferred(ctx context.Context, request Request) ([]string, error) {
	preferred, err := h.askPreferred(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("cannot find out which devices of %s the plugin prefers: %w", untrusted.Quote(request.Resource), err)
	}
	return preferred, nil
}

func (h *Handler) askPreferred(ctx context.Context, request Request) ([]string, error) {
	wanted, err := request.wish(h.MaxDevices)
	if err := cmp.Or(err, checkNames(request.Resource, "nobody")); err != nil {
		return nil, err
	}
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	h.mu.Lock()
	r := h.resources[request.Resource]
	if r == nil {
		h.mu.Unlock()
		return nil, errNoResource
	}
	p := r.available()
	p.use()
	h.mu.Unlock()
	if p == nil {
		return nil, ErrUnavailable
	}
	defer p.done()
	preferred := h.preference(ctx, p, wanted)
	h.mu.Lock()
	defer h.mu.Unlock()
	chosen, err := r.choose(wanted, preferred)
	if len(preferred) == 0 {
		chosen = nil
	}
	return chosen, err
}

// Release durably ends an allocation, and returns it. The error is [ErrNotFound] if there is none. It does not call the plugin, whose API
// has no method for that.
func (h *Handler) Release(ctx context.Context, resource, owner string) (Allocation, error) {
	released, err := h.endAllocation(ctx, resource, owner)
	if err != nil {
		return Allocation{}, fmt.Errorf("cannot release %s of %s: %w", untrusted.Quote(resource), untrusted.Quote(owner), err)
	}
	return released, nil
}

func (h *Handler) endAllocation(ctx context.Context, resource, owner string) (Allocation, error) {
	_, end, err := h.begin(ctx, resource, owner)
	if err != nil {
		return Allocation{}, err
	}
	defer end()
	var a *allocation
	h.mu.Lock()
	if r := h.resources[resource]; r != nil {
		a = r.allocations[owner]
	}
	h.mu.Unlock()
	if a == nil {
		return Allocation{}, fmt.Errorf("the allocation: %w", ErrNotFound)
	}
	if err := h.Store.Delete(a.key()); err != nil {
		return Allocation{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(a)
	h.tell()
	return a.public(), nil
}
