package reconciler_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/internal/trustjudge"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

func TestIgnoreUnhandled(t *testing.T) {
	var results []plugin.Result
	attempted := func(a plugin.Attempt) { results = append(results, a.Result) }
	bubble(t, "it is left alone, and registers when the handler comes", reconciler.Config{IgnoreUnhandled: true, Attempted: attempted},
		func(t *testing.T, w *world) {
			ignored := func() {
				t.Helper()
				if s := w.status("/a"); s.State != plugin.StateIgnored || s.LastError != "" || s.Attempts != 0 || !s.NextRetry.IsZero() {
					t.Errorf("status: %+v", s)
				}
			}
			w.serve("/a", "", &fakePlugin{info: plugin.Info{Type: "Later", Name: "foo", Versions: []string{"v1"}}})
			w.expect("event ignored foo")
			ignored()
			time.Sleep(time.Hour)
			w.expect()
			w.r.SetHandler("Later", w.handler)
			w.expectCalls("validate foo /a", "register foo /a")
			w.r.RemoveHandler("Later")
			w.expectCalls("deregister foo")
			ignored()
			time.Sleep(time.Hour)
			w.expect()
			w.r.SetHandler("Later", w.handler)
			w.expectCalls("validate foo /a", "register foo /a")
			want := []plugin.Result{plugin.ResultIgnored, plugin.ResultRegistered, plugin.ResultRegistered}
			if !slices.Equal(results, want) {
				t.Errorf("the attempts ended with %q, want %q", results, want)
			}
		})
	judge, err := trustjudge.New(trust.Policy{Types: map[string]trust.Type{"Later": {Users: []string{"60001"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for what, wrong := range map[string]*fakePlugin{
		"announces 2 versions": {info: plugin.Info{Type: "Later", Name: "foo", Versions: []string{"v1", "v2"}}},
		"user 60002 may not register": {
			info:    plugin.Info{Type: "Later", Name: "foo", Versions: []string{"v1"}},
			account: plugin.Account{UID: 60002, GID: 60002, Known: true},
		},
	} {
		bubble(t, what, reconciler.Config{
			IgnoreUnhandled: true, Bounds: plugin.Bounds{Versions: 1}, Trust: judge, Refused: func(trust.Reason) {},
		}, func(t *testing.T, w *world) {
			var told string
			wrong.onTold = func(_ bool, reason string) { told = reason }
			w.serve("/a", "", wrong)
			time.Sleep(time.Hour)
			synctest.Wait()
			if told != "" {
				t.Errorf("it is told %q by a host that has no handler for it", told)
			}
			w.r.SetHandler("Later", w.handler)
			time.Sleep(3 * time.Minute) // longer than the longest pause
			synctest.Wait()
			if !strings.Contains(told, what) {
				t.Errorf("it is told %q by a host that has a handler for it", told)
			}
		})
	}
}
