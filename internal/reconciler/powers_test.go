package reconciler_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

// keeper keeps registrations that could not be told.
type keepingHandler struct {
	*recorder
	keeps bool
}

func (k keepingHandler) KeepRegistration(name string, reason error) bool {
	k.w.note("keep %s? %v", name, reason)
	return k.keeps
}

func TestKeepRegistration(t *testing.T) {
	up := []string{"validate foo /a.api", "register foo /a.api"}
	const asked = "keep foo? cannot notify the plugin that it is registered: does not listen"
	bubble(t, "kept", reconciler.Config{}, func(t *testing.T, w *world) {
		w.r.SetHandler("T", keepingHandler{w.handler, true})
		p := w.serve("/a", "foo", &fakePlugin{notifyErr: errors.New("does not listen")})
		w.expectCalls(up[0], up[1], asked)
		if s := w.status("/a"); s.State != plugin.StateRegistered || !strings.Contains(s.LastError, "does not listen") || s.Attempts != 1 {
			t.Errorf("status: %+v", s)
		}
		w.mu.Lock()
		p.notifyErr = nil
		w.mu.Unlock()
		time.Sleep(time.Second)
		w.expectCalls(up...)
		if s := w.status("/a"); s.State != plugin.StateRegistered || s.LastError != "" {
			t.Errorf("after it was told: %+v", s)
		}
		time.Sleep(time.Hour)
		w.expect()
	})
	bubble(t, "not kept", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.r.SetHandler("T", keepingHandler{w.handler, false})
		w.serve("/a", "foo", &fakePlugin{notifyErr: errors.New("does not listen")})
		w.expectCalls(up[0], up[1], asked, "deregister foo")
	})
}

// patient is a handler whose registration takes until its context ends.
type patient struct{ *recorder }

func (p patient) RegisterPluginContext(ctx context.Context, name, endpoint string, _ []string, _ *time.Duration) (plugin.Registration, error) {
	p.w.note("register %s %s with a context", name, endpoint)
	<-ctx.Done()
	return plugin.Registration{}, ctx.Err()
}

func TestRegisterPluginContext(t *testing.T) {
	cfg := reconciler.Config{TypeTimeouts: map[string]plugin.Timeouts{"T": {Handler: time.Second}}}
	up := []string{"validate foo /a.api", "register foo /a.api with a context"}
	bubble(t, "ends with the socket", cfg, func(_ *testing.T, w *world) {
		w.r.SetHandler("T", patient{w.handler})
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
		w.remove("/a")
		w.expectCalls()
		if left := w.r.Plugins(); len(left) > 0 {
			w.t.Errorf("left: %+v", left)
		}
	})
	bubble(t, "ends with its time", cfg, func(_ *testing.T, w *world) {
		w.r.SetHandler("T", patient{w.handler})
		w.serve("/a", "foo", nil)
		time.Sleep(time.Second)
		w.expect(up[0], up[1], "event refused foo", "told foo false: plugin registration failed: context deadline exceeded")
	})
	bubble(t, "ends with the reconciler", reconciler.Config{}, func(_ *testing.T, w *world) {
		w.r.SetHandler("T", patient{w.handler})
		w.serve("/a", "foo", nil)
		w.expectCalls(up...)
	})
}

func TestTimeouts(t *testing.T) {
	slow := func() *fakePlugin { return &fakePlugin{infoTakes: 8 * time.Second} }
	bubble(t, "too short", reconciler.Config{}, func(t *testing.T, w *world) {
		w.serve("/a", "foo", slow())
		time.Sleep(5 * time.Second)
		if s := w.status("/a"); s.State != plugin.StateBackoff || !strings.Contains(s.LastError, "deadline") {
			t.Errorf("status: %+v", s)
		}
	})
	bubble(t, "long enough for its type", reconciler.Config{TypeTimeouts: map[string]plugin.Timeouts{"T": {GetInfo: 10 * time.Second}}},
		func(_ *testing.T, w *world) {
			w.serve("/a", "foo", slow())
			time.Sleep(8 * time.Second)
			w.expectCalls("validate foo /a.api", "register foo /a.api")
		})
	bubble(t, "too short to be told", reconciler.Config{}, func(t *testing.T, w *world) {
		w.serve("/a", "foo", &fakePlugin{notifyTakes: 8 * time.Second})
		time.Sleep(5 * time.Second)
		if s := w.status("/a"); s.State != plugin.StateBackoff || !strings.Contains(s.LastError, "cannot notify the plugin") {
			t.Errorf("status: %+v", s)
		}
	})
	bubble(t, "long enough to be told", reconciler.Config{TypeTimeouts: map[string]plugin.Timeouts{"T": {Notify: 10 * time.Second}}},
		func(t *testing.T, w *world) {
			w.serve("/a", "foo", &fakePlugin{notifyTakes: 8 * time.Second})
			time.Sleep(8 * time.Second)
			if s := w.status("/a"); s.State != plugin.StateRegistered {
				t.Errorf("status: %+v", s)
			}
		})
	bubble(t, "a dial hangs", reconciler.Config{TypeTimeouts: map[string]plugin.Timeouts{"T": {Dial: 3 * time.Second}}},
		func(t *testing.T, w *world) {
			w.serve("/a", "foo", &fakePlugin{backlogFull: true})
			time.Sleep(2 * time.Second)
			if s := w.status("/a"); s.State != plugin.StateConnecting {
				t.Errorf("after 2 s: %+v", s)
			}
			time.Sleep(time.Second)
			if s := w.status("/a"); s.State != plugin.StateBackoff || !strings.Contains(s.LastError, "deadline") {
				t.Errorf("after 3 s: %+v", s)
			}
		})
}

// TestClientTimeout has a timeout configured for a type, for one name of a type, and none.
func TestClientTimeout(t *testing.T) {
	second := time.Second
	minute := time.Minute
	cfg := reconciler.Config{ClientTimeout: func(ptype, name string) *time.Duration {
		return map[string]*time.Duration{"T/foo": &second, "T/bar": &minute}[ptype+"/"+name]
	}}
	bubble(t, "", cfg, func(t *testing.T, w *world) {
		timeouts := timeoutsOf{recorder: w.handler, got: map[string]*time.Duration{}}
		w.r.SetHandler("T", timeouts)
		w.r.SetHandler("U", timeouts)
		for path, info := range map[string]plugin.Info{
			"/a": {Type: "T", Name: "foo"}, "/b": {Type: "T", Name: "bar"}, "/c": {Type: "T", Name: "baz"}, "/d": {Type: "U", Name: "foo"},
		} {
			w.serve(path, "", &fakePlugin{info: info})
		}
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		want := map[string]*time.Duration{"/a": &second, "/b": &minute, "/c": nil, "/d": nil}
		if diff := cmp.Diff(want, timeouts.got); diff != "" {
			t.Errorf("timeouts by endpoint (-want +got):\n%s", diff)
		}
	})
}

// timeoutsOf notes the timeouts that it is given, by endpoint.
type timeoutsOf struct {
	*recorder
	got map[string]*time.Duration
}

func (h timeoutsOf) RegisterPlugin(_, endpoint string, _ []string, timeout *time.Duration) error {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.got[endpoint] = timeout
	return nil
}

func TestBounds(t *testing.T) {
	long := strings.Repeat("x", 4097)
	for name, test := range map[string]struct {
		info plugin.Info
		want string
	}{
		"no type":             {plugin.Info{Name: "n"}, "no type"},
		"no name":             {plugin.Info{Type: "T"}, "no name"},
		"a slash in a type":   {plugin.Info{Type: "T/U", Name: "n"}, "slash"},
		"a long name":         {plugin.Info{Type: "T", Name: long}, "at most 4096"},
		"a long version":      {plugin.Info{Type: "T", Name: "n", Versions: []string{long[:65]}}, "with 65 bytes; at most 64"},
		"an empty version":    {plugin.Info{Type: "T", Name: "n", Versions: []string{""}}, "no version"},
		"many versions":       {plugin.Info{Type: "T", Name: "n", Versions: make([]string, 65)}, "at most 64"},
		"a control character": {plugin.Info{Type: "T", Name: "n\x1b[2J"}, "control characters"},
		"NUL in the endpoint": {plugin.Info{Type: "T", Name: "n", Endpoint: "/a\x00"}, "control characters"},
		"abstract endpoint":   {plugin.Info{Type: "T", Name: "n", Endpoint: "@a"}, "abstract socket"},
		"invalid UTF-8":       {plugin.Info{Type: "T", Name: "n\xff"}, "invalid UTF-8"},
	} {
		bubble(t, name, reconciler.Config{}, func(t *testing.T, w *world) {
			w.mu.Lock()
			w.plugins["/a"] = &fakePlugin{info: test.info}
			w.mu.Unlock()
			if err := w.desired.AddOrUpdatePlugin("/a"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if s := w.status("/a"); s.State != plugin.StateRefused || !strings.Contains(s.LastError, test.want) {
				t.Errorf("status: %+v", s)
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, line := range w.log {
				if strings.HasPrefix(line, "validate") {
					t.Error(line)
				}
			}
			if len(w.log) != 2 || !strings.HasPrefix(w.log[1], "told ") {
				t.Errorf("it was not told: %q", w.log)
			}
		})
	}
	bubble(t, "other bounds", reconciler.Config{Bounds: plugin.Bounds{Text: 5000, Versions: 1}}, func(_ *testing.T, w *world) {
		w.serve("/a", "", &fakePlugin{info: plugin.Info{Type: "T", Name: long, Versions: []string{"v1"}}})
		w.expectCalls("validate "+long+" /a", "register "+long+" /a")
	})
}
