package runtime_test

import (
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/patchbay-dev/patchbay/plugin"
)

// TestRuntimeRemembersTheOrder: an older instance that was registered last, as the newest did not answer, yields to that when it answers,
// also if the host restarted in between.
func TestRuntimeRemembersTheOrder(t *testing.T) {
	h := newHost(t)
	h.serve("foo", "old.sock")
	older := h.await("registered", "foo")
	process, _ := h.discover(os.Args[0], "foo")
	newer := h.await("registered", "foo")
	h.end()

	t.Cleanup(func() { _ = process.Signal(syscall.SIGCONT) })
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Wait4(process.Pid, nil, syscall.WUNTRACED, nil); err != nil { // until it has stopped
		t.Fatal(err)
	}
	h.start()
	if e := h.await("registered", "foo"); e.Instance != older.Instance {
		t.Errorf("while the newest is stopped, %+v", e)
	}
	h.end()

	if err := process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	h.start()
	for e := h.await("registered", "foo"); e.Instance != newer.Instance; e = h.await("registered", "foo") {
		t.Logf("before the newest: %+v", e)
	}
	h.await("superseded", "foo")
	if s := h.rt.Plugins(); len(s) != 2 || s[0].Instance != newer.Instance || !s[0].Current || s[1].State != plugin.StateSuperseded {
		t.Errorf("plugins: %+v", s)
	}
}

// TestRuntimeTakesOverWithFullDisk: an older instance takes over for a newer one that goes, though not even that can be saved.
func TestRuntimeTakesOverWithFullDisk(t *testing.T) {
	h := newHost(t)
	h.serve("foo", "old.sock")
	older := h.await("registered", "foo")
	newer := h.serve("foo", "new.sock")
	h.await("registered", "foo")
	h.full.Store(true)
	if err := newer.Stop(); err != nil {
		t.Fatal(err)
	}
	if e := h.await("registered", "foo"); e.Instance != older.Instance {
		t.Errorf("registered again is %+v", e)
	}
	current := func() {
		t.Helper()
		if err := h.call("foo"); err != nil {
			t.Errorf("call: %v", err)
		}
		if s := h.rt.Plugins(); len(s) != 1 || s[0].Instance != older.Instance || s[0].State != plugin.StateRegistered {
			t.Errorf("plugins: %+v", s)
		}
	}
	current()
	if slices.ContainsFunc(h.unread, func(e plugin.Event) bool { return e.Kind == plugin.EventFailed }) {
		t.Errorf("something failed: %+v", h.unread)
	}
	h.full.Store(false)
	h.end()
	h.start()
	h.await("registered", "foo")
	current()
}
