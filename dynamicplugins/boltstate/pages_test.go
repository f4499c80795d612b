package boltstate

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
)

// TestSoundFiles checks that checkPages accepts files that bbolt has written, after various changes.
func TestSoundFiles(t *testing.T) {
	const rounds = 8
	path := filepath.Join(t.TempDir(), "state.db")
	for round := range rounds {
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true, NoFreelistSync: round%7 == 3})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := db.Update(func(tx *bbolt.Tx) error { return shuffle(tx, round) }); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.Stat()
		if err == nil {
			err = checkPages(f, info.Size())
		}
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		_ = f.Close()
	}
}

// shuffle puts and deletes keys of several buckets, consecutive and random ones. In every third round, most changes are deletions.
func shuffle(tx *bbolt.Tx, round int) error {
	for i := range 3 {
		bucket, err := tx.CreateBucketIfNotExists(fmt.Appendf(nil, "bucket %d", i))
		if err != nil {
			return err
		}
		for range 100 {
			start, run := rand.IntN(20_000), 1
			if rand.IntN(10) == 0 {
				run = rand.IntN(200)
			}
			for k := start; k < start+run; k++ {
				key := fmt.Appendf(nil, "%0*d", 5+k%40, k)
				if rand.IntN(3) == 0 != (round%3 == 2) {
					err = bucket.Delete(key)
				} else {
					err = bucket.Put(key, make([]byte, rand.IntN(1+rand.IntN(1+rand.IntN(9000)))))
				}
				if err != nil {
					return err
				}
			}
		}
	}
	if round%10 == 9 {
		return tx.DeleteBucket([]byte("bucket 1"))
	}
	return nil
}
