package boltstate

import (
	"encoding/binary"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// A name that is kept has the key of the plugins of that name. The value is the numbers UID, GID and, in nanoseconds since 1970, until
// when, unsigned varints, sealed like a value of a Bucket.

// encodeName returns what is stored of a name; nil if it is not reserved.
func encodeName(key []byte, name dynamicplugins.KeptName) []byte {
	if name.Until.IsZero() {
		return nil
	}
	var value []byte
	for _, n := range []uint64{uint64(name.UID), uint64(name.GID), uint64(name.Until.UnixNano())} {
		value = binary.AppendUvarint(value, n)
	}
	return seal(key, value)
}

func decodeName(key, stored []byte) (name dynamicplugins.KeptName, err error) {
	if name.Type, name.Name, err = decodeKey(key); err != nil {
		return name, fmt.Errorf("malformed key: %w", err)
	}
	value, err := unseal(key, stored)
	if err != nil {
		return name, err
	}
	d := decoder{rest: value}
	name.UID, name.GID, name.Until = uint32(d.number()), uint32(d.number()), time.Unix(0, int64(d.number()))
	return name, d.end()
}

func keptNames(tx *bbolt.Tx) (names []dynamicplugins.KeptName, err error) {
	bucket := tx.Bucket(namesBucket)
	if bucket == nil {
		return nil, nil
	}
	err = bucket.ForEach(func(key, stored []byte) error {
		name, err := decodeName(key, stored)
		if err != nil {
			return fmt.Errorf("what is kept of the name %q is damaged: %w", key, err)
		}
		names = append(names, name)
		return nil
	})
	return names, err
}
