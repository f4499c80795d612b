package boltstate

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// TestRefuses checks that Open refuses paths that cannot be a state file, and a Store what it cannot keep: in use and after Close.
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
	t.Chdir(t.TempDir()) // the Store still means the same file, also when it opens that again
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

// aside calls do and waits until it has returned, or its goroutine has ended.
func aside(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }()
		do()
	}()
	<-done
}
