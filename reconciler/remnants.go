package reconciler

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/internal/foreign"
	"github.com/patchbay-dev/patchbay/trust"
)

// The bounds of what is kept of instances that are gone. Beyond them the oldest are forgotten first.
const (
	tracesPerUser = 64
	tracesInTotal = 1024
)

// remnant is what is kept of an instance: of its refusal, or of one that lives without a socket.
type remnant struct {
	in     *instance // nil of a refusal
	key    laneKey
	by     trust.Account
	status Status
}

// of says whether it is somebody's. Of whom nothing is known is one of his own.
func (m remnant) of(by trust.Account) bool { return m.by.UID == by.UID && m.by.Known == by.Known }

// remnants are bounded by user and in sum, the oldest first. Guarded by Reconciler.mu.
type remnants []remnant

// keep adds one, and returns those that were forgotten for want of room.
func (r *remnants) keep(added remnant) (forgotten []remnant) {
	*r = append(*r, added)
	mine := 0
	for _, m := range *r {
		if m.of(added.by) {
			mine++
		}
	}
	if mine > tracesPerUser {
		forgotten = append(forgotten, r.oldest(func(m remnant) bool { return m.of(added.by) }))
	}
	if len(*r) > tracesInTotal {
		forgotten = append(forgotten, r.oldest(func(remnant) bool { return true }))
	}
	return forgotten
}

// oldest takes the oldest out that matches. There is one.
func (r *remnants) oldest(matches func(remnant) bool) remnant {
	i := slices.IndexFunc(*r, matches)
	m := (*r)[i]
	*r = slices.Delete(*r, i, i+1)
	return m
}

// forget takes out what matches.
func (r *remnants) forget(matches func(remnant) bool) { *r = slices.DeleteFunc(*r, matches) }

// keepRefusal keeps the last refusal of a name, one for each user: nobody's reason takes the place of another one's. mu is held.
func (r *Reconciler) keepRefusal(in *instance) {
	named := in.named()
	if named.Type == "" {
		return
	}
	const textMax = 4096
	status := in.status()
	status.LastError = foreign.Cut(status.LastError, textMax)
	kept := remnant{key: laneKey{named.Type, named.Name}, by: in.account, status: Status{
		Type: named.Type, Name: named.Name, State: StateRefused, Endpoint: status.Endpoint, SocketPath: status.SocketPath,
		Source: status.Source, FirstSeen: status.FirstSeen, Since: time.Now(), Attempts: status.Attempts, LastError: status.LastError,
	}}
	r.refusals.forget(func(m remnant) bool { return m.key == kept.key && m.of(kept.by) })
	r.refusals.keep(kept)
}

// settled forgets what is kept of the name of an instance that is registered. mu is held.
func (r *Reconciler) settled(in *instance) {
	key := laneKey{in.announced.Type, in.announced.Name}
	r.refusals.forget(func(m remnant) bool { return m.key == key })
	for in := range r.unlinked {
		if (laneKey{in.announced.Type, in.announced.Name}) == key {
			r.unwatchUnlinked(in)
		}
	}
}

// Refusals describes the last refusal of each name which has not been registered since, and whose plugin is gone, or is about something
// else by now: each with the state "refused" and the reason as its LastError. They are sorted by type and name, the newest of each first.
// At most 64 are kept for each user and 1,024 in all, the newest, in memory.
func (r *Reconciler) Refusals() []Status {
	type place struct{ ptype, name, socket string }
	present := map[place]string{}
	for _, s := range r.Plugins() {
		present[place{s.Type, s.Name, s.SocketPath}] = s.LastError
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Status
	for _, m := range slices.Backward(r.refusals) {
		s := m.status
		shown, there := present[place{s.Type, s.Name, s.SocketPath}]
		if !there || !strings.HasPrefix(shown, strings.TrimSuffix(s.LastError, "…")) {
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
	})
	return all
}
