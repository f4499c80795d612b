package bench

import (
	"path/filepath"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"github.com/patchbay-dev/patchbay/bench/internal/registry"
)

// bolt is the floor of what is durable: a value of 200 bytes under the name of each plugin in a bbolt file, and nothing else.
type bolt struct {
	registry.Incomplete

	db     *bbolt.DB
	commit func(b *bolt, change func(*bbolt.Tx) error) error
	queue  chan boltChange
}

// boltChange is a change that waits to be committed.
type boltChange struct {
	do   func(*bbolt.Tx) error
	done chan error
}

var boltBucket = []byte("plugins")

// openBolt opens files whose changes are committed in a certain way; the delay is that of batch.
func openBolt(delay time.Duration, commit func(b *bolt, change func(*bbolt.Tx) error) error) registry.Opener {
	return func(dir string) (registry.Subject, error) {
		db, err := bbolt.Open(filepath.Join(dir, "floor.db"), 0o600, nil)
		if err != nil {
			return nil, err
		}
		err = db.Update(func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucketIfNotExists(boltBucket)
			return err
		})
		if err != nil {
			return nil, err
		}
		db.MaxBatchDelay = delay
		b := &bolt{db: db, commit: commit, queue: make(chan boltChange, 1024)}
		go b.commitGroups()
		return b, nil
	}
}

// update commits each change in a transaction of its own.
func (b *bolt) update(change func(*bbolt.Tx) error) error { return b.db.Update(change) }

// batch is bbolt's own way to commit changes together, which waits for others for as long as the delay of the file.
func (b *bolt) batch(change func(*bbolt.Tx) error) error { return b.db.Batch(change) }

// group commits together all changes that came while the last transaction was being written.
func (b *bolt) group(change func(*bbolt.Tx) error) error {
	done := make(chan error, 1)
	b.queue <- boltChange{change, done}
	return <-done
}

func (b *bolt) commitGroups() {
	for first := range b.queue {
		changes := []boltChange{first}
		for len(b.queue) > 0 {
			changes = append(changes, <-b.queue)
		}
		err := b.db.Update(func(tx *bbolt.Tx) error {
			for _, change := range changes {
				if err := change.do(tx); err != nil {
					return err
				}
			}
			return nil
		})
		for _, change := range changes {
			change.done <- err
		}
	}
}

// Register implements [registry.Subject].
func (b *bolt) Register(i int) error {
	key, value := []byte(registry.Name(i)), make([]byte, 200)
	return b.commit(b, func(tx *bbolt.Tx) error { return tx.Bucket(boltBucket).Put(key, value) })
}

// Deregister implements [registry.Subject].
func (b *bolt) Deregister(i int) error {
	key := []byte(registry.Name(i))
	return b.commit(b, func(tx *bbolt.Tx) error { return tx.Bucket(boltBucket).Delete(key) })
}

// List implements [registry.Subject].
func (b *bolt) List() (n int) {
	values := map[string][]byte{}
	_ = b.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(boltBucket).ForEach(func(key, value []byte) error {
			values[string(key)] = slices.Clone(value)
			return nil
		})
	})
	return len(values)
}

// Close implements [registry.Subject].
func (b *bolt) Close() error {
	close(b.queue)
	return b.db.Close()
}
