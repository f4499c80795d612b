package boltstate

import (
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// TestGroups checks that changes that arrive during a transaction share the next one, and that each other change has its own transaction.
func TestGroups(t *testing.T) {
	store, err := Open(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	put := func(i int) {
		if err := store.PutDynamicPluginChange(&dynamicplugins.PluginChange{Type: "t", Name: fmt.Sprint(i)}); err != nil {
			t.Error(err)
		}
	}
	waiting := func() int {
		store.mu.Lock()
		defer store.mu.Unlock()
		if store.next == nil {
			return 0
		}
		return len(store.next.records)
	}
	start := lastTransaction(t, store)
	const callers = 20
	for round := range 3 {
		store.writing.Lock() // as if a transaction were in progress
		var putting sync.WaitGroup
		for i := range callers {
			putting.Go(func() { put(i) })
		}
		for waiting() < callers {
			runtime.Gosched()
		}
		store.writing.Unlock()
		putting.Wait()
		put(0)
		if n, want := lastTransaction(t, store)-start, 2*(round+1); n != want {
			t.Errorf("%d transactions, want %d", n, want)
		}
	}
}

// lastTransaction returns the number of the last transaction that wrote.
func lastTransaction(t *testing.T, store *Store) int {
	var id int
	if err := store.view(func(tx *bbolt.Tx) error { id = tx.ID(); return nil }); err != nil {
		t.Fatal(err)
	}
	return id
}
