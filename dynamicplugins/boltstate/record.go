package boltstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/plugin"
)

// A record is the instances of one plugin:
//
//	key    string type, string name
//	value  count of instances, instances, CRC-32C over the key and the value before it, 4 bytes, big endian
//
// An instance is the strings version and AllocID, 0 or 1 and a socket path for the connection info, 0 or 1 + the number of options
// and as many pairs of strings, sorted. A number is an unsigned varint; a string is its length and its bytes, any bytes. The
// key has the type and name of the instances.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errTruncated = errors.New("it ends too early")

func appendKey(b []byte, ptype, name string) []byte {
	return appendString(appendString(b, ptype), name)
}

func appendValue(b, key []byte, plugins []*dynamicplugins.PluginInfo) []byte {
	start := len(b)
	b = binary.AppendUvarint(b, uint64(len(plugins)))
	for _, p := range plugins {
		b = appendString(b, p.Version)
		b = appendString(b, p.AllocID)
		if p.ConnectionInfo == nil {
			b = append(b, 0)
		} else {
			b = appendString(append(b, 1), p.ConnectionInfo.SocketPath)
		}
		if p.Options == nil {
			b = append(b, 0)
			continue
		}
		b = binary.AppendUvarint(b, uint64(len(p.Options))+1)
		names := make([]string, 0, 8) // on the stack, unless there are more
		for name := range p.Options {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			b = appendString(appendString(b, name), p.Options[name])
		}
	}
	return binary.BigEndian.AppendUint32(b, checksum(key, b[start:]))
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func checksum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}

func decodeKey(key []byte) (ptype, name string, err error) {
	d := decoder{rest: key}
	ptype, name = d.string(), d.string()
	return ptype, name, d.end()
}

// decode returns the instances of a record, newest first.
func decode(key, value []byte) ([]*dynamicplugins.PluginInfo, error) {
	ptype, name, err := decodeKey(key)
	if err != nil {
		return nil, fmt.Errorf("malformed key: %w", err)
	}
	body := len(value) - crc32.Size
	if body < 0 {
		return nil, errTruncated
	}
	if binary.BigEndian.Uint32(value[body:]) != checksum(key, value[:body]) {
		return nil, errors.New("its checksum is wrong")
	}
	d := decoder{rest: value[:body]}
	var plugins []*dynamicplugins.PluginInfo
	for n := d.count(); n > 0 && d.err == nil; n-- {
		p := &dynamicplugins.PluginInfo{Type: ptype, Name: name}
		p.Version = d.string()
		p.AllocID = d.string()
		if d.number() != 0 {
			p.ConnectionInfo = &dynamicplugins.PluginConnectionInfo{SocketPath: d.string()}
		}
		if n := d.count(); n > 0 {
			p.Options = make(map[string]string, n-1)
			for ; n > 1; n-- {
				k := d.string()
				p.Options[k] = d.string()
			}
		}
		plugins = append(plugins, p)
	}
	return plugins, d.end()
}

// decoder reads values from a byte slice. After an error it returns zero values.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) number() uint64 {
	n, size := binary.Uvarint(d.rest)
	if size <= 0 {
		d.fail(errTruncated)
		return 0
	}
	d.rest = d.rest[size:]
	return n
}

// count reads a number of items. Each takes at least one byte, so a greater number is an error, before the caller allocates memory for it.
func (d *decoder) count() uint64 {
	n := d.number()
	if n > uint64(len(d.rest))+1 {
		d.fail(errTruncated)
		return 0
	}
	return n
}

func (d *decoder) string() string {
	n := d.number()
	if n > uint64(len(d.rest)) {
		d.fail(errTruncated)
		return ""
	}
	s := string(d.rest[:n])
	d.rest = d.rest[n:]
	return s
}

func (d *decoder) fail(err error) {
	d.rest = nil
	if d.err == nil {
		d.err = err
	}
}

func (d *decoder) end() error {
	if d.err == nil && len(d.rest) > 0 {
		return fmt.Errorf("it has %d bytes too many", len(d.rest))
	}
	return d.err
}

// A reservation has the key of its plugin's record. The value is UID, GID and the end in nanoseconds since 1970 as unsigned varints, sealed
// like a value of a Bucket.

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
