package boltstate

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// breakDevice makes the next transaction fail.
func breakDevice(t *testing.T, store *Store) {
	t.Helper()
	if err := store.db.file.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestReopen checks that a change fails if the device does, and that the next change opens the file again.
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

// TestRemovedAndReplaced checks that a Store neither recreates a removed file nor uses another file at its path.
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

// TestFailedTransactionIsTakenBack checks that a transaction is reverted, in memory and in the file, if the sync of its meta page fails. To
// bbolt, the transaction looks written.
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

// TestRefuses checks that Open refuses paths that cannot be a state file, and that a Store refuses changes that it cannot store, before and
// after Close.
func TestRefuses(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, path := range map[string]string{
		"no path": "", "a directory": dir, "a NUL": filepath.Join(dir, "a\x00"), "a long name": filepath.Join(dir, strings.Repeat("a", 300)),
		"a long path": dir + strings.Repeat("/a", 4096),
	} {
		if s, err := Open(path); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error is %v", name, err)
			_ = s.Close()
		}
	}
	if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
		t.Errorf("%v is left: %v", left, err)
	}
	s, err := Open("relative/state.db")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir()) // the Store must use the same file, also when it opens it again
	breakDevice(t, s)
	_ = s.Check()
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	failed := errors.New("enough")
	for _, state := range []string{"in use", "after Close", "after the second"} {
		b := s.Bucket("b")
		for call, err := range map[string]error{
			"a nil change":               s.PutDynamicPluginChange(nil),
			"a nil change of several":    errors.Join(s.PutDynamicPluginChanges([]*dynamicplugins.PluginChange{nil})...),
			"a nil plugin":               s.PutDynamicPluginChange(&dynamicplugins.PluginChange{Type: "T", Name: "n", Plugins: []*dynamicplugins.PluginInfo{nil}}),
			"no key":                     b.Put("", nil),
			"a long key":                 b.Put(strings.Repeat("k", bbolt.MaxKeySize+1), nil),
			"a key of no bucket":         s.Bucket("").Put("k", nil),
			"a key of a long bucket":     s.Bucket(strings.Repeat("b", bbolt.MaxKeySize)).Put("k", nil),
			"a deletion without a key":   b.Delete(""),
			"a deletion of no bucket":    s.Bucket("").Delete("k"),
			"a function that had enough": firstOf(b.Put("k", nil), b.ForEach(func(string, []byte) error { return failed })),
		} {
			if err == nil || state != "in use" && call == "a function that had enough" && !errors.Is(err, ErrClosed) {
				t.Errorf("%s, %s: the error is %v", state, call, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		for call, err := range map[string]error{
			"Check": s.Check(), "Put": b.Put("k", nil), "Delete": b.Delete("k"), "replace": s.PutDynamicPluginRegistryState(nil),
		} {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("after Close, %s: %v", call, err)
			}
		}
	}
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestCallbacks checks that a function of ForEach or OnFailure that does not return leaves the Store usable.
func TestCallbacks(t *testing.T) {
	for name, fail := range map[string]func(){"panics": func() { panic("oops") }, "ends its goroutine": runtime.Goexit} {
		s, err := Open(filepath.Join(t.TempDir(), "state.db"))
		if err != nil {
			t.Fatal(err)
		}
		b := s.Bucket("b")
		if err := b.Put("k", nil); err != nil {
			t.Fatal(err)
		}
		aside(func() { _ = b.ForEach(func(string, []byte) error { fail(); return nil }) })
		if err := b.Put("k", []byte("v")); err != nil {
			t.Errorf("after a function of ForEach that %s: %v", name, err)
		}
		s.OnFailure(func(error) { fail() })
		breakDevice(t, s)
		aside(func() {
			if err := b.Put("k", nil); err == nil {
				t.Errorf("OnFailure %s: no error", name)
			}
		})
		s.OnFailure(nil)
		if err := b.Put("k", []byte("w")); err != nil {
			t.Errorf("after an OnFailure that %s: %v", name, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// aside calls do in another goroutine and waits for the end of that goroutine.
func aside(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }()
		do()
	}()
	<-done
}
