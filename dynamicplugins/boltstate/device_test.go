package boltstate

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.etcd.io/bbolt"
)

// breakDevice has the next transaction fail.
func breakDevice(t *testing.T, store *Store) {
	t.Helper()
	if err := store.db.file.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestReopen: a change that the device did not take is told as such, and the next one opens the file again.
func TestReopen(t *testing.T) {
	store, err := Open(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	failures := 0
	store.OnFailure(func(error) { failures++ })
	b := store.Bucket("b")
	if err := b.Put("1", nil); err != nil {
		t.Fatal(err)
	}
	breakDevice(t, store)
	if err := b.Put("2", nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("with a broken device: %v", err)
	}
	for key, want := range map[string]bool{"1": true, "2": false} {
		if value, err := b.Get(key); err != nil || (value != nil) != want {
			t.Errorf("key %s: %v, %v", key, value, err)
		}
	}
	if err := errors.Join(store.Check(), b.Put("2", nil)); err != nil {
		t.Errorf("with a device that works again: %v", err)
	}
	if failures != 1 || store.lost != 0 {
		t.Errorf("%d failures were told, %d bytes are lost", failures, store.lost)
	}
}

// TestRemovedAndReplaced: no file is made where the file was, and another one is not taken for it.
func TestRemovedAndReplaced(t *testing.T) {
	dir := t.TempDir()
	path, away := filepath.Join(dir, "state.db"), filepath.Join(dir, "away")
	store, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Bucket("b").Put("1", nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, away); err != nil {
		t.Fatal(err)
	}
	breakDevice(t, store)
	for range 2 {
		if err := store.Check(); err == nil {
			t.Error("a file that is not there was written")
		}
	}
	if _, err := store.Bucket("b").Get("1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("reading a file that is not there: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file was made: %v", err)
	}
	other, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := store.Check(); !errors.Is(err, ErrReplaced) {
		t.Errorf("another file: %v", err)
	}
	if err := os.Rename(away, path); err != nil {
		t.Fatal(err)
	}
	if err := store.Check(); err != nil {
		t.Errorf("the file itself: %v", err)
	}
}

// TestFailedTransactionIsTakenBack: what bbolt has when the sync of a meta page failed, which is a transaction that looks written, is gone
// afterwards, in memory and in the file.
func TestFailedTransactionIsTakenBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	store, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	b := store.Bucket("b")
	for _, key := range []string{"1", "2", "3"} { // the meta pages take turns
		if err := b.Put(key, nil); err != nil {
			t.Fatal(err)
		}
		failed := record{bucket: b.name, key: []byte("failed"), value: seal([]byte("failed"), nil)}
		if _, err := store.db.transact(true, func(tx *bbolt.Tx) error { return failed.put(tx.Bucket(pluginsBucket)) }); err != nil {
			t.Fatal(err)
		}
		breakDevice(t, store)
		if err := store.Check(); err == nil {
			t.Fatal("the device works")
		}
		if value, err := b.Get("failed"); value != nil || err != nil {
			t.Errorf("after %s: the change that failed is there: %q, %v", key, value, err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	store, err = Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var keys []string
	if err := store.Bucket("b").ForEach(func(key string, _ []byte) error {
		keys = append(keys, key)
		return nil
	}); err != nil || !slices.Equal(keys, []string{"1", "2", "3"}) {
		t.Errorf("the file has %v, %v", keys, err)
	}
}
