package reconciler_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// step is one disturbance of a world.
type step struct {
	Op       string
	Path, To string
	Name     string
	Pause    time.Duration
}

var steps = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
	path := rapid.SampledFrom([]string{"/a", "/b", "/c", "/d"})
	return step{
		Op: rapid.SampledFrom([]string{
			"make", "make", "make bare", "make bare", "make slow", "make late", "make hung", "make garbage", "make unavailable", "make untellable", "make hidden",
			"remove", "rename", "rename", "rename", "kill", "kill", "fail save", "mend save", "change name", "heal",
			"fail validate", "fail register", "retry register", "panic register", "slow validate", "slow register", "slow deregister",
			"clear handler",
			"remove handler", "set handler", "pause", "pause",
		}).Draw(t, "op"),
		Path:  path.Draw(t, "path"),
		To:    path.Draw(t, "to"),
		Name:  rapid.SampledFrom([]string{"foo", "bar"}).Draw(t, "name"),
		Pause: rapid.SampledFrom([]time.Duration{0, time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond, 3 * time.Second}).Draw(t, "pause"),
	}
}), 1, 40)

// TestModel disturbs a world in every way and sees that the handler is called only as the documented state machine allows, that
// everything ends as it should when the disturbances end, and that nothing is left running (which the bubble notices).
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		todo := steps.Draw(rt, "steps")
		cfg := reconciler.Config{
			Walks:            rapid.IntRange(1, 3).Draw(rt, "walks"),
			UnreachableGrace: rapid.SampledFrom([]time.Duration{0, 0, time.Second}).Draw(rt, "grace"),
		}
		keeps := rapid.Bool().Draw(rt, "keeps")
		var wrong []string
		synctest.Test(t, func(t *testing.T) { wrong = disturb(t, cfg, keeps, todo) })
		if len(wrong) > 0 {
			rt.Fatalf("%s", strings.Join(wrong, "\n"))
		}
	})
}

func disturb(t *testing.T, cfg reconciler.Config, keeps bool, todo []step) (wrong []string) {
	w := newWorld(t, cfg)
	h := &strict{keeps: keeps, held: map[string]string{}, validated: map[string]string{}, busy: map[string]bool{}, mode: map[string]string{}}
	w.r.SetHandler("T", h)
	for i, s := range todo {
		w.disturb(s, fmt.Sprint("/endpoint", i), h)
		time.Sleep(s.Pause)
		synctest.Wait()
	}
	// All disturbances end; the longest back-off is 2 min and a bit.
	h.set("", "")
	w.mu.Lock()
	w.failSave = nil
	for _, p := range w.plugins {
		p.heal()
	}
	w.mu.Unlock()
	w.r.SetHandler("T", h)
	time.Sleep(15 * time.Minute)
	synctest.Wait()
	return append(h.complaints(), w.settled(h)...)
}

// disturb does one step.
func (w *world) disturb(s step, endpoint string, h *strict) {
	w.mu.Lock()
	at := w.plugins[s.Path]
	w.mu.Unlock()
	how, isMake := strings.CutPrefix(s.Op, "make")
	if isMake {
		p := &plugin{info: reconciler.Info{Type: "T", Name: s.Name, Endpoint: endpoint, Versions: []string{"v1"}}}
		switch strings.TrimSpace(how) {
		case "bare":
			p.info.Endpoint = ""
		case "slow":
			p.infoTakes = 50 * time.Millisecond
		case "late":
			p.infoTakes = 3 * time.Second
		case "hung":
			p.hangs = true
		case "garbage":
			p.infoErr = errors.New("garbage")
		case "unavailable":
			p.infoErr = errors.New("unavailable")
		case "untellable":
			p.notifyErr = errors.New("does not listen")
		case "hidden":
			p.hidden = true
		}
		w.serve(s.Path, s.Name, p)
		return
	}
	switch s.Op {
	case "remove":
		w.remove(s.Path)
	case "rename":
		if at != nil && s.Path != s.To {
			w.move(s.Path, s.To, at)
		}
	case "kill":
		if at != nil {
			w.kill(at)
		}
	case "change name":
		if at != nil {
			w.mu.Lock()
			at.info.Name = s.Name
			w.mu.Unlock()
		}
	case "heal":
		if at != nil {
			w.mu.Lock()
			at.heal()
			w.mu.Unlock()
		}
	case "fail save":
		w.mu.Lock()
		w.failSave = errors.New("disk full")
		w.mu.Unlock()
	case "mend save":
		w.mu.Lock()
		w.failSave = nil
		w.mu.Unlock()
	case "remove handler":
		w.r.RemoveHandler("T")
	case "set handler":
		w.r.SetHandler("T", h)
	case "clear handler":
		h.set("", "")
	case "pause":
	default:
		mode, call, _ := strings.Cut(s.Op, " ")
		h.set(call, mode)
	}
}

func (p *plugin) heal() { p.infoTakes, p.hangs, p.infoErr, p.notifyErr = 0, false, nil, nil }

// settled says what is wrong in a world without disturbances.
func (w *world) settled(h *strict) (wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	statuses := w.r.Plugins()
	w.mu.Lock()
	defer w.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()

	registered := []string{}
	living := 0
	current := map[string]reconciler.Status{}
	for _, s := range statuses {
		p := w.plugins[s.SocketPath]
		switch {
		case p == nil:
			complain("%s has no socket and is %s", s.SocketPath, s.State)
		case p.dead:
			if s.State != reconciler.StateUnreachable && s.State != reconciler.StateBackoff && s.State != reconciler.StateConnecting {
				complain("%s is dead and is %s", s.SocketPath, s.State)
			}
		default:
			living++
			// The newest comes first for each name.
			first, known := current[s.Name]
			switch {
			case !known && (s.State != reconciler.StateRegistered || !s.Current):
				complain("%s is the newest of %s and is %s: %+v", s.SocketPath, s.Name, s.State, s)
			case known && (s.State != reconciler.StateSuperseded || s.Current):
				complain("%s is older than %s and is %s", s.SocketPath, first.SocketPath, s.State)
			}
			if !known {
				current[s.Name] = s
				registered = append(registered, s.SocketPath)
			}
		}
	}
	for path, p := range w.plugins {
		if !p.dead {
			living--
		}
		if !slices.ContainsFunc(statuses, func(s reconciler.Status) bool { return s.SocketPath == path }) {
			complain("%s is not known", path)
		}
	}
	actual := []string{}
	for _, info := range w.actual.GetRegisteredPlugins() {
		actual = append(actual, info.SocketPath)
	}
	if slices.Sort(registered); !slices.Equal(registered, actual) {
		complain("the actual state has %v and not %v", actual, registered)
	}
	if living != 0 {
		complain("%d more living plugins are known than there are", living)
	}
	for _, name := range []string{"foo", "bar"} {
		if s, ok := current[name]; h.held[name] != s.Endpoint {
			complain("the handler has %q of %s; current is %q (%t)", h.held[name], name, s.Endpoint, ok)
		} else if ok && !slices.Contains(w.registry[name], s.Instance) {
			complain("the registry has %v of %s and not the current %s", w.registry[name], name, s.Instance)
		}
		for _, id := range w.registry[name] {
			if !slices.ContainsFunc(statuses, func(s reconciler.Status) bool { return s.Instance == id && s.Name == name }) {
				complain("the registry has %s of %s, which is gone", id, name)
			}
		}
	}
	return wrong
}

// strict is a handler that knows the documented state machine and misbehaves on demand.
type strict struct {
	keeps     bool
	mu        sync.Mutex
	held      map[string]string // endpoint by name, of those registered
	validated map[string]string // endpoint by name, of those that may be registered next
	busy      map[string]bool
	mode      map[string]string // by call
	wrong     []string
}

// set has calls of a kind misbehave from now on; the empty kind has all behave.
func (h *strict) set(call, mode string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if call == "" {
		clear(h.mode)
	} else {
		h.mode[call] = mode
	}
}

func (h *strict) complaints() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.wrong)
}

// call brackets one call for a name: no other may run meanwhile.
func (h *strict) call(call, name string, allowed func() string) (mode string, end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.busy[name] {
		h.wrong = append(h.wrong, fmt.Sprintf("%s(%s) while another call runs", call, name))
	}
	h.busy[name] = true
	if objection := allowed(); objection != "" {
		h.wrong = append(h.wrong, fmt.Sprintf("%s(%s): %s", call, name, objection))
	}
	mode = h.mode[call]
	return mode, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.busy[name] = false
	}
}

func (h *strict) ValidatePlugin(name, endpoint string, _ []string) error {
	mode, end := h.call("validate", name, func() string { return "" })
	defer end()
	switch mode {
	case "fail":
		return errors.New("not valid")
	case "slow":
		time.Sleep(200 * time.Millisecond)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.validated[name] = endpoint
	return nil
}

func (h *strict) RegisterPlugin(name, endpoint string, _ []string, _ *time.Duration) error {
	mode, end := h.call("register", name, func() string {
		if h.validated[name] != endpoint {
			return fmt.Sprintf("%s was not validated", endpoint)
		}
		delete(h.validated, name)
		// Whatever comes of it, the one before is registered no more.
		delete(h.held, name)
		return ""
	})
	defer end()
	switch mode {
	case "fail":
		return errors.New("cannot register")
	case "retry":
		return fmt.Errorf("wait: %w", cache.ErrRetry)
	case "panic":
		panic("oops")
	case "slow":
		time.Sleep(200 * time.Millisecond)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held[name] = endpoint
	return nil
}

func (h *strict) DeRegisterPlugin(name string) {
	mode, end := h.call("deregister", name, func() string {
		if h.held[name] == "" {
			return "it is not registered"
		}
		delete(h.validated, name)
		return ""
	})
	defer end()
	if mode == "slow" {
		time.Sleep(200 * time.Millisecond)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.held, name)
}

func (h *strict) KeepRegistration(name string, _ error) bool {
	_, end := h.call("keep", name, func() string { return "" })
	end()
	return h.keeps
}

func (h *strict) InstanceGone(name, endpoint string) {
	_, end := h.call("gone", name, func() string {
		if h.held[name] == endpoint {
			return fmt.Sprintf("%s is the one that is registered", endpoint)
		}
		return ""
	})
	end()
}
