package dynamicplugins

import (
	"sync"

	"github.com/patchbay-dev/patchbay/plugin"
)

// reservations of names are saved together with the plugins of the name, so that a crash loses neither or both.
type reservations struct {
	restored []plugin.Reservation
	pending  sync.Map // plugin.Name → *plugin.Reservation that is not saved yet
}

// Reservations implements [keeper.Keeper].
func (r storeKeeper) Reservations() []plugin.Reservation { return r.reserved.restored }

// Reserve implements [keeper.Keeper].
func (r storeKeeper) Reserve(reservation plugin.Reservation) {
	r.reserved.pending.Store(reservation.Plugin, &reservation)
}

// SaveReservation implements [keeper.Keeper].
func (r storeKeeper) SaveReservation(name plugin.Name) error {
	k, err := named(name.Type, name.Name, "save the name of")
	if err != nil {
		return err
	}
	return r.change(k, func(l *pluginInstances) error {
		if r.reserved.unsaved(l.key) == nil {
			return nil
		}
		return r.put(l, l.saved)
	})
}

// unsaved returns the reservation that is to be saved for a name, or nil.
func (r *reservations) unsaved(name plugin.Name) *plugin.Reservation {
	pending, _ := r.pending.Load(name)
	reservation, _ := pending.(*plugin.Reservation)
	return reservation
}

// saved drops a pending reservation that was saved, nil for none, unless a newer one has replaced it.
func (r *reservations) saved(reservation *plugin.Reservation) {
	if reservation != nil {
		r.pending.CompareAndDelete(reservation.Plugin, reservation)
	}
}
