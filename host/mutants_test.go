//go:build unix

package host

import (
	"container/list"
	"errors"
	"flag"
	"os"
	"runtime"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/simulate"
	"github.com/patchbay-dev/patchbay/plugin"
)

var mutants = flag.Bool("simulate.mutants", false, "have TestMutants see that the tests find each mutant")

// TestMutants has the tests find each fault of testdata/mutants.txt.
func TestMutants(t *testing.T) {
	if !*mutants {
		t.Skip("make mutants does this")
	}
	all, err := simulate.ReadMutants("testdata/mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		t.Run(m.Name, func(t *testing.T) {
			survives, err := m.Survives(t.Context(), "..", t.TempDir(), "-test.run", "^Test[A-Z]", "-test.skip", "^TestMutants$", "-test.failfast")
			if err != nil || survives {
				t.Errorf("survives: %t, %v", survives, err)
			}
		})
	}
}

// TestEachRefusalForNow: which answers are not kept.
func TestEachRefusalForNow(t *testing.T) {
	forNow := map[codes.Code]bool{
		codes.Canceled: true, codes.DeadlineExceeded: true, codes.Aborted: true, codes.Unavailable: true, codes.ResourceExhausted: true,
	}
	p := NewAdmissionPlugin(t.Context(), newHost(t), []string{"/bin/true"})
	s := newSession(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		promise := &Promise{pin: pin(code.String()), id: uint64(code) + 1}
		p.sent.push(promise)
		s.open[promise.id] = promise
		p.kept = promises{list.New()}
		s.resolve(&pluginv1.Resolution{Id: promise.id, Code: int32(code)})
		if kept := p.kept.Len() == 1; kept == forNow[code] {
			t.Errorf("the answer %v is kept: %t", code, kept)
		}
	}
}

// TestCloseWhileLaunching: Close waits for launches that have begun, and nothing runs after it.
func TestCloseWhileLaunching(t *testing.T) {
	for range 30 {
		h := &Host{}
		initialize(t, h)
		var launches sync.WaitGroup
		var mu sync.Mutex
		var launched []*PluginProcess
		for range 4 {
			launches.Go(func() {
				p, err := h.Launch(t.Context(), self("polite"))
				if err != nil {
					if !errors.Is(err, ErrClosed) {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				defer mu.Unlock()
				launched = append(launched, p)
			})
		}
		for begun := 0; begun == 0; runtime.Gosched() {
			h.mu.Lock()
			begun = len(h.plugins)
			h.mu.Unlock()
		}
		h.Close(t.Context())
		launches.Wait()
		for _, p := range launched {
			select {
			case <-p.Done():
			default:
				t.Errorf("process %d runs after Close", p.PID())
			}
		}
	}
}

// TestWaitingChecksOutliveAPlugin: what a plugin was not asked yet waits for its next process when this one ends, unless this one has not even
// said hello.
func TestWaitingChecksOutliveAPlugin(t *testing.T) {
	for name, test := range map[string]struct{ greeted, waits bool }{
		"greeted": {greeted: true, waits: true}, "never greeted": {},
	} {
		p := NewAdmissionPlugin(t.Context(), newHost(t), []string{"/bin/true"})
		s := newSession(p)
		s.greeted = test.greeted
		sent, waiting := &Promise{pin: pin("sent"), id: 1}, &Promise{pin: pin("waiting")}
		p.mu.Lock()
		p.session, s.open[sent.id] = s, sent
		p.sent.push(sent)
		p.waiting.push(waiting)
		p.mu.Unlock()
		p.finish(s, ErrCrashed)
		if err := sent.Wait(t.Context()); !errors.Is(err, ErrCrashed) {
			t.Errorf("%s: what was sent: %v", name, err)
		}
		p.mu.Lock()
		waits := p.waiting.Len() == 1 && p.waiting.first() == waiting && !waiting.resolved
		p.mu.Unlock()
		if waits != test.waits {
			t.Errorf("%s: the check that was not sent waits: %t", name, waits)
		}
	}
}

// TestUnneededPluginIsForgotten: a host knows the admission plugins that are in use, and no others.
func TestUnneededPluginIsForgotten(t *testing.T) {
	h := newHost(t)
	p := NewAdmissionPlugin(t.Context(), h, []string{"/bin/true"})
	known := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		_, ok := h.admissions[p]
		return ok
	}
	if !h.use(p) || !known() {
		t.Fatal("the host does not know a plugin that is in use")
	}
	p.mu.Lock()
	p.waiting.push(&Promise{pin: pin("waiting")})
	p.mu.Unlock()
	if !(supervised{p}).Needed() || !known() {
		t.Error("a plugin for which a check waits is not needed, or not known")
	}
	p.mu.Lock()
	p.waiting.Remove(p.waiting.Front())
	p.mu.Unlock()
	if (supervised{p}).Needed() || known() {
		t.Error("a plugin for which no check waits is needed, or known")
	}
}

// TestAdmissionEventsHaveOneName: the events of the process and those of what keeps it running have the name of the plugin.
func TestAdmissionEventsHaveOneName(t *testing.T) {
	e := newEvents()
	h := &Host{Events: e.add}
	initialize(t, h)
	t.Setenv(modeEnv, "admission")
	a := NewAdmission(t.Context(), h, Spec{Name: "guard", Args: []string{os.Args[0]}}, 0)
	if err := ask(t, a, "ok"); err != nil {
		t.Fatal(err)
	}
	e.await(t, plugin.EventReady, nil)
	a.Close(t.Context())
	e.await(t, plugin.EventTerminated, nil)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.list {
		if event.Name != "guard" {
			t.Errorf("an event has the name %q: %+v", event.Name, event)
		}
	}
}
