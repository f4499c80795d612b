package boltstate_test

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
)

func openStore(t *testing.T, path string) *boltstate.Store {
	t.Helper()
	store, err := boltstate.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() }) // most tests have already closed it
	return store
}

func content(t *testing.T, b *boltstate.Bucket) map[string]string {
	t.Helper()
	found := map[string]string{}
	if err := b.ForEach(func(key string, value []byte) error {
		found[key] = string(value)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

func TestBucketKeepsWhatIsPutIntoIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	store := openStore(t, path)
	one, two := store.Bucket("one"), store.Bucket("two")
	if got := content(t, one); len(got) != 0 {
		t.Errorf("a new bucket has %v", got)
	}
	if value, err := one.Get("none"); value != nil || err != nil {
		t.Errorf("Get of what is not there: %q, %v", value, err)
	}
	if err := one.Delete("none"); err != nil {
		t.Errorf("Delete of what is not there: %v", err)
	}
	for _, err := range []error{
		one.Put("a", []byte("1")), one.Put("b", nil), one.Put("c", []byte("3")), one.Put("a", []byte("2")), one.Delete("c"),
		two.Put("a", []byte("other")),
		store.PutDynamicPluginChange(&dynamicplugins.PluginChange{Type: "t", Name: "n",
			Plugins: []*dynamicplugins.PluginInfo{{Type: "t", Name: "n", AllocID: "x"}}}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	store = openStore(t, path)
	one = store.Bucket("one")
	if got, want := content(t, one), map[string]string{"a": "2", "b": ""}; !maps.Equal(got, want) {
		t.Errorf("after it was opened again the bucket has %v, want %v", got, want)
	}
	if value, err := one.Get("b"); value == nil || len(value) != 0 || err != nil {
		t.Errorf("an empty value is %v, %v", value, err)
	}
	if got := content(t, store.Bucket("two")); got["a"] != "other" {
		t.Errorf("the other bucket has %v", got)
	}
	// Replacing and restoring all plugins does not affect buckets.
	if err := store.PutDynamicPluginRegistryState(nil); err != nil {
		t.Fatal(err)
	}
	if got := content(t, one); len(got) != 2 {
		t.Errorf("after the plugins were replaced the bucket has %v", got)
	}
	state, err := store.GetDynamicPluginRegistryState()
	if err != nil || len(state.Plugins) != 0 {
		t.Errorf("the plugins are %v, %v", state, err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if err := one.Put("a", nil); !errors.Is(err, boltstate.ErrClosed) {
		t.Errorf("Put after Close: %v", err)
	}
	if err := one.ForEach(nil); !errors.Is(err, boltstate.ErrClosed) {
		t.Errorf("ForEach after Close: %v", err)
	}
}

// TestBucketRefuses checks that records that cannot be stored are refused, so that other records of the transaction do not fail.
func TestBucketRefuses(t *testing.T) {
	store := openStore(t, filepath.Join(t.TempDir(), "state.db"))
	long := strings.Repeat("k", bbolt.MaxKeySize+1)
	for what, err := range map[string]error{
		"an empty key":     store.Bucket("b").Put("", nil),
		"a long key":       store.Bucket("b").Put(long, nil),
		"no bucket name":   store.Bucket("").Put("k", nil),
		"a long name":      store.Bucket(long).Put("k", nil),
		"to delete no key": store.Bucket("b").Delete(""),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "cannot write state file") {
			t.Errorf("%s: got %v", what, err)
		}
	}
	stop := errors.New("enough")
	if err := store.Bucket("b").Put("k", nil); err != nil {
		t.Fatal(err)
	}
	if err := store.Bucket("b").ForEach(func(string, []byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("ForEach returned %v, want what the function returned", err)
	}
}

// TestBucketsShareTransactions checks that concurrent changes of buckets and plugins share transactions, and that all are stored.
func TestBucketsShareTransactions(t *testing.T) {
	store := openStore(t, filepath.Join(t.TempDir(), "state.db"))
	const callers = 64
	var putting sync.WaitGroup
	for i := range callers {
		name := fmt.Sprint(i)
		putting.Go(func() {
			var err error
			switch i % 3 {
			case 0:
				err = store.Bucket("one").Put(name, []byte(name))
			case 1:
				err = store.Bucket("two").Put(name, []byte(name))
			default:
				err = store.PutDynamicPluginChange(&dynamicplugins.PluginChange{Type: "t", Name: name,
					Plugins: []*dynamicplugins.PluginInfo{{Type: "t", Name: name}}})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	putting.Wait()
	state, err := store.GetDynamicPluginRegistryState()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(content(t, store.Bucket("one"))) + len(content(t, store.Bucket("two"))) + len(state.Plugins["t"]); n != callers {
		t.Errorf("%d changes are there, want %d", n, callers)
	}
}

func TestBucketSeesDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	store := openStore(t, path)
	if err := store.Bucket("b").Put("key", []byte("value")); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("handler/b")).Put([]byte("key"), []byte("valuf0000"))
	}), db.Close()); err != nil {
		t.Fatal(err)
	}
	b := openStore(t, path).Bucket("b")
	if _, err := b.Get("key"); !errors.Is(err, boltstate.ErrCorrupt) {
		t.Errorf("Get: %v", err)
	}
	if err := b.ForEach(func(string, []byte) error { return nil }); !errors.Is(err, boltstate.ErrCorrupt) {
		t.Errorf("ForEach: %v", err)
	}
}
