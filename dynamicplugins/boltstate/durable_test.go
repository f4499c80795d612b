package boltstate

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestSyncs checks that Open syncs the directory of a new file, and that the first change syncs the file, whose last transaction an earlier
// process may not have synced.
func TestSyncs(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.db")
	syncs, broken := syncFile, errors.New("the device is gone")
	defer func() { syncFile = syncs }()
	failing := dir
	syncFile = func(f *os.File) error {
		if f.Name() == failing {
			return broken
		}
		return syncs(f)
	}
	if _, err := Open(path); !errors.Is(err, broken) {
		t.Errorf("making a file in a directory that cannot be synced: %v", err)
	}
	failing = path
	store, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Bucket("b").Put("1", nil); !errors.Is(err, broken) {
		t.Errorf("the first change of a file that cannot be synced: %v", err)
	}
	failing = ""
	if err := store.Bucket("b").Put("1", nil); err != nil {
		t.Error(err)
	}
}
