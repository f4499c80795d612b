package reconciler_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/reconciler"
	"github.com/patchbay-dev/patchbay/trust"
)

// ofUsers trusts two users with the type T.
func ofUsers(t *testing.T) reconciler.Config {
	t.Helper()
	judge, err := trust.New(trust.Policy{Types: map[string]trust.Type{"T": {Users: []string{"60001", "60002"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if judge.Privileged(60001) {
		t.Skip("there are no users on Windows")
	}
	return reconciler.Config{Trust: judge}
}

func of(uid uint32) *plugin { return &plugin{account: trust.Account{UID: uid, GID: uid, Known: true}} }

func wantState(t *testing.T, w *world, path string, want reconciler.State) {
	t.Helper()
	synctest.Wait()
	if s := w.status(path); s.State != want {
		t.Errorf("%s is %s, want %s: %+v", path, s.State, want, s)
	}
}

// TestNameOfTwoThatWait: of two users whose plugins could not be registered at first, the one that could be has the name, whichever of them
// is newer.
func TestNameOfTwoThatWait(t *testing.T) {
	bubble(t, "", ofUsers(t), func(t *testing.T, w *world) {
		for _, path := range []string{"/a", "/b"} {
			w.handler.set("validate "+path+".api", errors.New("not now"))
		}
		w.serve("/a", "foo", of(60001))
		synctest.Wait()
		w.serve("/b", "foo", of(60002))
		wantState(t, w, "/b", reconciler.StateBackoff)
		w.handler.set("validate /a.api", nil)
		time.Sleep(5 * time.Minute)
		wantState(t, w, "/a", reconciler.StateRegistered)
		w.handler.set("validate /b.api", nil)
		time.Sleep(5 * time.Minute)
		wantState(t, w, "/a", reconciler.StateRegistered)
		wantState(t, w, "/b", reconciler.StateRefused)
	})
}
