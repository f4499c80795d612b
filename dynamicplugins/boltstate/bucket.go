package boltstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"go.etcd.io/bbolt"
)

// Bucket stores keys and values of a plugin handler in the state file. A change is durable when its method returns; concurrent changes
// share a transaction. A Bucket is safe for concurrent use. After [Store.Close], its methods return [ErrClosed].
//
// Buckets that a program does not use stay in the file.
type Bucket struct {
	store *Store
	// name is bucketPrefix and the handler's name, so that it differs from the store's own buckets.
	name []byte
}

// A stored value is followed by the CRC-32C of the key and the value, 4 bytes, big endian.
const bucketPrefix = "handler/"

// Bucket returns the bucket with a name, which must not be empty. The first Put creates it in the file.
func (s *Store) Bucket(name string) *Bucket {
	return &Bucket{store: s, name: []byte(bucketPrefix + name)}
}

// Get returns the value of a key; nil if there is none. It returns an error if the file cannot be read or the value is damaged.
func (b *Bucket) Get(key string) (value []byte, err error) {
	err = b.view(func(bucket *bbolt.Bucket) error {
		if stored := bucket.Get([]byte(key)); stored != nil {
			value, err = unseal([]byte(key), stored)
		}
		return err
	})
	return value, err
}

// ForEach calls fn for every key in order, until fn returns an error, which ForEach then returns. fn must not change the store; it may keep
// the value.
func (b *Bucket) ForEach(fn func(key string, value []byte) error) error {
	var failed error
	err := b.view(func(bucket *bbolt.Bucket) error {
		return bucket.ForEach(func(key, stored []byte) error {
			value, err := unseal(key, stored)
			if err != nil {
				return err
			}
			failed = fn(string(key), value)
			return failed
		})
	})
	if failed != nil {
		return failed
	}
	return err
}

func (b *Bucket) view(look func(*bbolt.Bucket) error) error {
	if err := b.store.use(); err != nil {
		return err
	}
	defer b.store.users.Done()
	err := b.store.view(func(tx *bbolt.Tx) error {
		if bucket := tx.Bucket(b.name); bucket != nil {
			return look(bucket)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot read state file %s: bucket %s: %w", b.store.path, b.name, err)
	}
	return nil
}

// Put stores a value, which may be empty, under a key, which must not be empty. It blocks until the value is durable; after an error, the
// bucket is unchanged.
func (b *Bucket) Put(key string, value []byte) error {
	if len(value) > bbolt.MaxValueSize-crc32.Size {
		return b.refuse(fmt.Errorf("the value of key %.40q takes more than %d bytes", key, bbolt.MaxValueSize-crc32.Size))
	}
	return b.commit(record{bucket: b.name, key: []byte(key), value: seal([]byte(key), value)})
}

// Delete removes a key and its value, if it exists. It blocks, and returns errors, as Put does.
func (b *Bucket) Delete(key string) error {
	return b.commit(record{bucket: b.name, key: []byte(key)})
}

// commit checks that a record can be stored, because an error would fail the other records of its transaction, and makes it durable.
func (b *Bucket) commit(r record) error {
	switch {
	case len(b.name) == len(bucketPrefix):
		return b.refuse(errors.New("the bucket has no name"))
	case len(b.name) > bbolt.MaxKeySize:
		return b.refuse(fmt.Errorf("its name is longer than %d bytes", bbolt.MaxKeySize-len(bucketPrefix)))
	case len(r.key) == 0:
		return b.refuse(errors.New("a key is empty"))
	case len(r.key) > bbolt.MaxKeySize:
		return b.refuse(fmt.Errorf("a key is longer than %d bytes: %.40q…", bbolt.MaxKeySize, r.key))
	}
	return b.store.commit(r)
}

func (b *Bucket) refuse(err error) error {
	return b.store.cannotWrite(fmt.Errorf("bucket %.100s: %w", b.name, err))
}

func seal(key, value []byte) []byte {
	sealed := append(make([]byte, 0, len(value)+crc32.Size), value...)
	return binary.BigEndian.AppendUint32(sealed, checksum(key, value))
}

// unseal checks a stored value and returns a copy without the checksum.
func unseal(key, stored []byte) ([]byte, error) {
	body := len(stored) - crc32.Size
	if body < 0 || binary.BigEndian.Uint32(stored[body:]) != checksum(key, stored[:body]) {
		return nil, fmt.Errorf("the value of key %.40q is damaged: %w", key, ErrCorrupt)
	}
	return append(make([]byte, 0, body), stored[:body]...), nil
}
