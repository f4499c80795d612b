package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// manners is how the handlers of a model behave.
type manners struct {
	// keeps: they keep registrations that could not be told. contexts: they take a context. stay: they are there in the end.
	keeps, contexts, stay bool
	modes                 map[string]string // by call
	released              chan struct{}     // closed to have blocked calls return
}

// behave has calls of a kind misbehave from now on; the empty kind has all behave that begin from now on.
func (m *model) behave(call, mode string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if call == "" {
		clear(m.modes)
	} else {
		m.modes[call] = mode
	}
}

// release has all calls behave and return.
func (m *model) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.modes)
	close(m.released)
	m.released = make(chan struct{})
}

// act does what the mode of a call says. The plugin with the endpoint has to be told of a failure.
func (m *model) act(ctx context.Context, call, endpoint string) error {
	m.mu.Lock()
	mode, released := m.modes[call], m.released
	m.mu.Unlock()
	switch mode {
	case "fail":
		m.owe(endpoint, true)
		return errors.New("no")
	case "retry":
		return fmt.Errorf("patience: %w", cache.ErrRetry)
	case "panic":
		m.owe(endpoint, true)
		panic("oops")
	case "slow":
		_ = m.sim.Sleep(context.Background(), 200*time.Millisecond)
	case "block":
		if err := m.sim.until(ctx, released); err != nil {
			m.owe(endpoint, true)
			return err
		}
	}
	return nil
}

// admit answers whether an instance may be registered.
func (m *model) admit(ctx context.Context, in reconciler.Instance) error {
	if err := m.act(ctx, "admit", in.Endpoint); err != nil {
		return fmt.Errorf("not admitted: %w", err)
	}
	return nil
}

// strict is a handler that knows the documented state machine and misbehaves on demand.
type strict struct {
	m     *model
	ptype string
	names map[string]*walk
}

// walk is where a handler stands with one name. The world guards it.
type walk struct {
	// validated and versions are what may be registered next.
	validated string
	versions  []string
	// held is the endpoint that is registered, given all that were given since nothing was, and not taken back.
	held  string
	given []string
}

// handler returns h with the powers of its model.
func (h *strict) handler() cache.PluginHandler {
	if h.m.contexts {
		return strictContext{h}
	}
	return h
}

// begin brackets one call for a name: no other may run meanwhile, of whichever handler. The world is locked until do returns.
func (h *strict) begin(call, name string, do func(w *walk) (objection string)) (end func()) {
	m := h.m
	m.mu.Lock()
	defer m.mu.Unlock()
	m.did("call")
	key := lane{h.ptype, name}
	if running := m.busy[key]; running != "" {
		m.complain("%s(%s) while %s runs", call, name, running)
	}
	m.busy[key] = call
	w := h.names[name]
	if w == nil {
		w = &walk{}
		h.names[name] = w
	}
	if !slices.Contains(m.callers, h) {
		m.complain("%s(%s) of a handler from before a restart", call, name)
	}
	if objection := do(w); objection != "" {
		m.complain("%s(%s): %s", call, name, objection)
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.busy, key)
	}
}

// did changes what is known of a name after a call.
func (h *strict) did(name string, do func(w *walk)) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	do(h.names[name])
}

func (h *strict) ValidatePlugin(name, endpoint string, versions []string) (err error) {
	defer h.begin("validate", name, func(w *walk) string {
		w.validated = ""
		return ""
	})()
	if err := h.m.act(context.Background(), "validate", endpoint); err != nil {
		return err
	}
	h.did(name, func(w *walk) { w.validated, w.versions = endpoint, versions })
	return nil
}

func (h *strict) RegisterPlugin(name, endpoint string, versions []string, timeout *time.Duration) error {
	return h.register(context.Background(), name, endpoint, versions, timeout)
}

func (h *strict) register(ctx context.Context, name, endpoint string, versions []string, timeout *time.Duration) error {
	defer h.begin("register", name, func(w *walk) (objection string) {
		if w.validated != endpoint || !slices.Equal(w.versions, versions) {
			objection = fmt.Sprintf("%s %v was not validated, %s %v was", endpoint, versions, w.validated, w.versions)
		}
		if want := clientTimeout(h.ptype, name); (timeout == nil) != (want == nil) || timeout != nil && *timeout != *want {
			objection += fmt.Sprintf("client timeout %v, want %v", timeout, want)
		}
		// Whatever was registered before is no more if this fails.
		w.validated, w.held = "", ""
		return objection
	})()
	given := false
	defer func() {
		if !given {
			h.did(name, func(w *walk) { w.given = nil })
		}
	}()
	if err := h.m.act(ctx, "register", endpoint); err != nil {
		return err
	}
	given = true
	h.m.owe(endpoint, false)
	h.did(name, func(w *walk) {
		w.held = endpoint
		if !slices.Contains(w.given, endpoint) {
			w.given = append(w.given, endpoint)
		}
	})
	return nil
}

func (h *strict) DeRegisterPlugin(name string) {
	defer h.begin("deregister", name, func(w *walk) (objection string) {
		if w.held == "" {
			objection = "it is not registered"
		}
		*w = walk{}
		return objection
	})()
	_ = h.m.act(context.Background(), "deregister", "")
}

func (h *strict) KeepRegistration(name string, _ error) bool {
	defer h.begin("keep", name, func(w *walk) string {
		if w.held == "" {
			return "it is not registered"
		}
		return ""
	})()
	_ = h.m.act(context.Background(), "keep", "")
	return h.m.keeps
}

func (h *strict) InstanceGone(name, endpoint string) {
	defer h.begin("gone", name, func(w *walk) string {
		known := slices.Index(w.given, endpoint)
		switch {
		case w.held == "":
			return endpoint + " goes, and nothing is registered"
		case w.held == endpoint:
			return endpoint + " is the one that is registered"
		case known < 0:
			return fmt.Sprintf("%s was not given, or has gone before; given are %v", endpoint, w.given)
		}
		w.given = slices.Delete(w.given, known, known+1)
		return ""
	})()
	_ = h.m.act(context.Background(), "gone", "")
}

// strictContext is a strict handler that takes a context.
type strictContext struct{ *strict }

func (h strictContext) RegisterPluginContext(
	ctx context.Context, name, endpoint string, versions []string, timeout *time.Duration,
) (cache.Registration, error) {
	return cache.Registration{}, h.register(ctx, name, endpoint, versions, timeout)
}

// clientTimeout is configured for some plugins only.
func clientTimeout(ptype, name string) *time.Duration {
	timeout := time.Duration(ptype[0]) * time.Second
	if name == "foo" {
		return &timeout
	}
	return nil
}
