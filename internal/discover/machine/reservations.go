package machine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// The limits of reservations. A user's oldest ones are dropped first; beyond the total, no user's are dropped for another user's.
const (
	reservationsPerUser = 256
	reservationsInTotal = 4096
)

// reservations are limited by user and in total. The zero value is ready for use.
type reservations struct {
	byName map[plugin.Name]plugin.Reservation
	// byUser are the reserved names of each user, the oldest first.
	byUser map[uint32][]plugin.Name
	// reported are the users whose limit was reported; fullReported is set when the limit of the total was.
	reported     map[uint32]bool
	fullReported bool
}

// get returns the reservation of a name that is valid at a time.
func (r *reservations) get(name plugin.Name, now time.Time) (reservation plugin.Reservation, ok bool) {
	reservation, ok = r.byName[name]
	return reservation, ok && now.Before(reservation.Until)
}

func (r *reservations) remove(name plugin.Name) {
	uid := r.byName[name].Owner.UID
	delete(r.byName, name)
	r.byUser[uid] = slices.DeleteFunc(r.byUser[uid], func(o plugin.Name) bool { return o == name })
	if len(r.byUser[uid]) == 0 {
		delete(r.byUser, uid)
		delete(r.reported, uid)
	}
}

// add adds a reservation, and returns the reservations that were dropped for it. If the total limit is reached and its user has no other
// reservation, added itself is dropped.
func (r *reservations) add(added plugin.Reservation, now time.Time) (dropped []plugin.Reservation) {
	if r.byName == nil {
		r.byName, r.byUser, r.reported = map[plugin.Name]plugin.Reservation{}, map[uint32][]plugin.Name{}, map[uint32]bool{}
	}
	r.remove(added.Plugin)
	if len(r.byName) >= reservationsInTotal {
		for _, o := range r.sorted() {
			if !now.Before(o.Until) {
				r.remove(o.Plugin)
				dropped = append(dropped, o)
			}
		}
	}
	own := r.byUser[added.Owner.UID]
	full := len(r.byName) >= reservationsInTotal
	switch {
	case len(own) >= reservationsPerUser, full && len(own) > 0:
		dropped = append(dropped, r.byName[own[0]])
		r.remove(own[0])
	case full:
		return append(dropped, added)
	}
	r.byName[added.Plugin] = added
	r.byUser[added.Owner.UID] = append(r.byUser[added.Owner.UID], added.Plugin)
	return dropped
}

func (r *reservations) sorted() []plugin.Reservation {
	return slices.SortedFunc(maps.Values(r.byName), func(a, b plugin.Reservation) int { return a.Plugin.Compare(b.Plugin) })
}

// restoreReservations adds the reservations from before a restart. None lasts longer than a new one would, because the wall clock may have
// been wrong, and from now on none depends on that clock.
func (m *Machine) restoreReservations(all []plugin.Reservation) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b plugin.Reservation) int {
		return cmp.Or(a.Until.Compare(b.Until), a.Plugin.Compare(b.Plugin))
	})
	for _, r := range all {
		if !m.Now.Before(r.Until) || !m.reserves(r.Plugin.Type, r.Owner) {
			m.unreserve(r.Plugin)
			continue
		}
		r.Until = m.Now.Add(min(r.Until.Sub(m.Now), m.NameGrace))
		m.addReservation(r)
	}
}

// reserves reports whether names of an account's plugins of a type are reserved.
func (m *Machine) reserves(ptype string, owner plugin.Account) bool {
	return m.NameGrace > 0 && m.Trust != nil && m.Trust.ReservesNames(ptype, owner)
}

// reserve reserves the name of an instance that the registry is about to lose. The reservation has no effect while there is another
// instance, which then reserves the name for its own user.
func (m *Machine) reserve(in *instance) {
	if !in.recorded() || !m.reserves(in.announced.Type, in.account) {
		return
	}
	r := plugin.Reservation{Plugin: in.announced.PluginName(), Owner: in.account, Until: m.Now.Add(m.NameGrace)}
	m.do(Reserve{r, false})
	m.addReservation(r)
}

// addReservation adds a reservation, and reports when there is no room: once per user, and once for users without reservations.
func (m *Machine) addReservation(added plugin.Reservation) {
	for _, o := range m.reserved.add(added, m.Now) {
		m.unreserve(o.Plugin)
		why, reported := fmt.Sprintf("there are more than %d", reservationsInTotal), m.reserved.reported[o.Owner.UID]
		if len(m.reserved.byUser[o.Owner.UID]) >= reservationsPerUser {
			why = fmt.Sprintf("that user has more than %d", reservationsPerUser)
		}
		if o == added {
			reported, m.reserved.fullReported = m.reserved.fullReported, true
		} else {
			m.reserved.reported[o.Owner.UID] = true
		}
		if !reported && m.Now.Before(o.Until) {
			m.emitReleased(o.Plugin, fmt.Sprintf("the name was released although it was reserved for user %d, because %s reserved names; "+
				"further releases are not reported", o.Owner.UID, why))
		}
	}
}

// unreserve has the registry save that a name is not reserved.
func (m *Machine) unreserve(name plugin.Name) { m.do(Reserve{plugin.Reservation{Plugin: name}, true}) }

func (m *Machine) emitReleased(name plugin.Name, message string) {
	m.do(Emit{plugin.Event{Time: m.Now, Kind: plugin.EventReleased, Type: name.Type, Name: name.Name, Message: message}})
}

// releaseName ends the reservation of a name, and immediately retries the plugins that were refused because of it.
func (m *Machine) releaseName(name plugin.Name) {
	r, ok := m.reserved.get(name, m.Now)
	if !ok {
		return
	}
	m.reserved.remove(name)
	m.unreserve(name)
	m.emitReleased(name, fmt.Sprintf("the name was reserved for user %d, and was released by request", r.Owner.UID))
	m.urge(name)
}

// Reservation returns the reservation of a name, if it is reserved and no plugin of that name is registered.
func (m *Machine) Reservation(name plugin.Name) (r plugin.Reservation, ok bool) {
	if r, ok = m.reserved.get(name, m.Now); !ok || m.registered(name) {
		return plugin.Reservation{}, false
	}
	return r, true
}

func (m *Machine) registered(name plugin.Name) bool {
	l := m.lanes[name]
	return l != nil && slices.ContainsFunc(l.members, func(in *instance) bool { return in.phase != Gone && in.recorded() })
}

// checkName returns an error if an account's plugin may not have a name: another user's plugin has it, may be back from before a restart
// any moment, or had it last, and no other plugin has taken it since.
func (m *Machine) checkName(l *lane, in *instance, by plugin.Account) error {
	judge, key, taken := m.Trust, l.key, false
	for _, o := range l.members {
		claims := o.recorded() || o.held() || o.phase == Ready || o.phase == Walking
		if o == in || o.phase == Gone || !claims {
			continue
		}
		if err := judge.Supersede(key.Type, key.Name, by, o.account); err != nil {
			return err
		}
		taken = taken || o.recorded() && o.account.Known
	}
	for _, known := range m.remembered[key] {
		o := m.restored[known.socket]
		if o == nil || o.lane != nil || o.announced.PluginName() != key {
			continue
		}
		if err := judge.Supersede(key.Type, key.Name, by, o.account); err != nil {
			return err
		}
		taken = taken || o.account.Known
	}
	if r, ok := m.reserved.get(key, m.Now); ok && !taken {
		return judge.Inherit(key.Type, key.Name, by, r.Owner, r.Until)
	}
	return nil
}
