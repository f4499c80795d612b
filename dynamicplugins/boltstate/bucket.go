package boltstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"go.etcd.io/bbolt"
)

// Bucket is keys and values of a plugin handler, kept in the same file as the plugins and apart from them and from other buckets. A change
// is durable when the method that makes it returns, and shares its transaction with others that come at the same time. All methods may be
// called at once from several goroutines; after Close of the [Store] they fail with [ErrClosed].
//
// A program that knows nothing of a bucket leaves it as it is.
type Bucket struct {
	store *Store
	// name is that in the file: of a handler's name behind bucketPrefix, so that it is none of the store's own.
	name []byte
}

// In the file a value is followed by the CRC-32C over its key and itself, 4 bytes, big endian.
const bucketPrefix = "handler/"

// Bucket returns the bucket of a name, which is not empty. It is in the file once something is put into it.
func (s *Store) Bucket(name string) *Bucket {
	return &Bucket{store: s, name: []byte(bucketPrefix + name)}
}

// Get returns the value of a key, nil if there is none. It fails if the file cannot be read or the value is damaged.
func (b *Bucket) Get(key string) (value []byte, err error) {
	err = b.view(func(bucket *bbolt.Bucket) error {
		if stored := bucket.Get([]byte(key)); stored != nil {
			value, err = unseal([]byte(key), stored)
		}
		return err
	})
	return value, err
}

// ForEach calls fn for every key in order, until that returns an error, which it then returns. It must change nothing in the store. The
// value is fn's own.
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

// Put stores a value, also an empty one, under a key, which is not empty. It returns when the value is durable, or an error
// if it is not: the bucket is as before then.
func (b *Bucket) Put(key string, value []byte) error {
	if len(value) > bbolt.MaxValueSize-crc32.Size {
		return b.refuse(fmt.Errorf("the value of key %.40q takes more than %d bytes", key, bbolt.MaxValueSize-crc32.Size))
	}
	return b.commit(record{bucket: b.name, key: []byte(key), value: seal([]byte(key), value)})
}

// Delete removes a key and its value. There need be none. It fails as Put does.
func (b *Bucket) Delete(key string) error {
	return b.commit(record{bucket: b.name, key: []byte(key)})
}

// commit makes a record durable, after a check that it can be stored: it must not make others fail in the same transaction.
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

// unseal returns a copy of the value that was stored.
func unseal(key, stored []byte) ([]byte, error) {
	body := len(stored) - crc32.Size
	if body < 0 || binary.BigEndian.Uint32(stored[body:]) != checksum(key, stored[:body]) {
		return nil, fmt.Errorf("the value of key %.40q is damaged: %w", key, ErrCorrupt)
	}
	return append(make([]byte, 0, body), stored[:body]...), nil
}
