package keylock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// TestLock checks that a caller waits for a key that another one has, and has none of its own keys while it waits.
func TestLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Locks[string]
		unlock, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		locked := false
		go func() {
			unlockBoth, err := l.Lock(t.Context(), "b", "a")
			if err != nil {
				t.Error(err)
				return
			}
			locked = true
			unlockBoth()
		}()
		synctest.Wait()
		other, err := l.Lock(t.Context(), "b")
		if err != nil || locked {
			t.Fatalf("err %v, locked %v while another one has a key", err, locked)
		}
		other()
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("given up"))
		if _, err := l.Lock(ended, "a"); err == nil || err.Error() != "given up" {
			t.Errorf("after the end of the context: %v", err)
		}
		unlock()
		synctest.Wait()
		if !locked || len(l.held) != 0 {
			t.Errorf("locked %v, %d keys are left", locked, len(l.held))
		}
	})
}
