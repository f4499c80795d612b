package boltstate

import (
	"encoding/binary"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/patchbay-dev/patchbay/plugin"
)

// A reservation has the key of the plugins of its name. The value is the numbers UID, GID and, in nanoseconds since 1970, until when,
// unsigned varints, sealed like a value of a Bucket.

// encodeReservation returns the stored form of a reservation; nil if the name is not reserved.
func encodeReservation(key []byte, r plugin.Reservation) []byte {
	if r.Until.IsZero() {
		return nil
	}
	var value []byte
	for _, n := range []uint64{uint64(r.Owner.UID), uint64(r.Owner.GID), uint64(r.Until.UnixNano())} {
		value = binary.AppendUvarint(value, n)
	}
	return seal(key, value)
}

func decodeReservation(key, stored []byte) (r plugin.Reservation, err error) {
	if r.Plugin.Type, r.Plugin.Name, err = decodeKey(key); err != nil {
		return r, fmt.Errorf("malformed key: %w", err)
	}
	value, err := unseal(key, stored)
	if err != nil {
		return r, err
	}
	d := decoder{rest: value}
	r.Owner = plugin.Account{UID: uint32(d.number()), GID: uint32(d.number()), Known: true}
	r.Until = time.Unix(0, int64(d.number()))
	return r, d.end()
}

func reservations(tx *bbolt.Tx) (all []plugin.Reservation, err error) {
	bucket := tx.Bucket(namesBucket)
	if bucket == nil {
		return nil, nil
	}
	err = bucket.ForEach(func(key, stored []byte) error {
		r, err := decodeReservation(key, stored)
		if err != nil {
			return fmt.Errorf("what is kept of the name %q is damaged: %w", key, err)
		}
		all = append(all, r)
		return nil
	})
	return all, err
}
