package certfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestReplacedWithinATick checks that a file is read if it has replaced another file with the same time.
func TestReplacedWithinATick(t *testing.T) {
	t.Parallel()
	dir, at := t.TempDir(), time.Now()
	path := filepath.Join(dir, "f")
	replace := func(text string) {
		t.Helper()
		beside := filepath.Join(dir, "beside")
		if err := errors.Join(os.WriteFile(beside, []byte(text), 0o600), os.Chtimes(beside, at, at), os.Rename(beside, path)); err != nil {
			t.Fatal(err)
		}
	}
	f := &Files[string]{Names: []string{path}, Load: func() (string, error) {
		text, err := os.ReadFile(path)
		return string(text), err
	}}
	for _, want := range []string{"one", "two"} {
		replace(want)
		if got, err := f.Get(); err != nil || got != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
}
