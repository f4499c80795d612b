package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/plugin"
)

var errPatience = fmt.Errorf("patience: %w", cache.ErrRetry)

// strict is a handler that knows the documented state machine and misbehaves on demand.
type strict struct {
	l     *life
	ptype string
	names map[string]*walk
}

// walk is where a handler stands with one name.
type walk struct {
	// validated and versions are what may be registered next.
	validated string
	versions  []string
	// held is the endpoint that is registered, given all that were given since nothing was, and not taken back.
	held  string
	given []string
	// began counts what happened before the walk that is under way, calm those before the one by which held was registered.
	began, calm int
	beganAt     time.Duration
}

// handler returns h with the powers that the settings give it.
func (h *strict) handler() cache.PluginHandler {
	switch set := h.l.m.set; {
	case set.has("plain"):
		return struct{ cache.PluginHandler }{h}
	case set.has("contexts") && set.has("dirs"):
		return struct {
			*strict
			strictRegistrar
			strictDirs
		}{h, strictRegistrar{h}, strictDirs{h}}
	case set.has("contexts"):
		return struct {
			*strict
			strictRegistrar
		}{h, strictRegistrar{h}}
	case set.has("dirs"):
		return struct {
			*strict
			strictDirs
		}{h, strictDirs{h}}
	}
	return h
}

// begin brackets one call for a name: no other may run meanwhile, of whichever handler.
func (h *strict) begin(call, name string, do func(w *walk) (objection string)) (end func()) {
	l := h.l
	if l.dead {
		return func() {}
	}
	l.m.did("call")
	l.m.note("handler of %s: %s(%s)", h.ptype, call, name)
	key := lane{h.ptype, name}
	if running := l.busy[key]; running != "" {
		l.m.complain("%s(%s) while %s runs", call, name, running)
	}
	l.busy[key] = call
	w := h.names[name]
	if w == nil {
		w = &walk{}
		h.names[name] = w
	}
	if objection := do(w); objection != "" {
		l.m.complain("%s(%s): %s", call, name, objection)
	}
	return func() { delete(l.busy, key) }
}

// who returns the program of which a handler is told with an endpoint, whether anybody is there or not; nil if that is not sure.
func (h *strict) who(endpoint string) *program {
	m := h.l.m
	i := slices.IndexFunc(m.programs, func(p *program) bool { return unique(endpoint) && p.endpoints[endpoint] })
	if i < 0 {
		return m.files[endpoint]
	}
	return m.programs[i]
}

func (h *strict) ValidatePlugin(name, endpoint string, versions []string) (err error) {
	return h.validate(name, endpoint, versions, false)
}

func (h *strict) validate(name, endpoint string, versions []string, unfit bool) error {
	defer h.begin("validate", name, func(w *walk) string {
		w.validated = ""
		m := h.l.m
		quiet := w.calm == m.moment() && m.sim.elapsed-m.lastOne > 50*time.Millisecond
		if w.held == endpoint && unique(endpoint) && quiet && !m.set.has("keeps") {
			return endpoint + " is registered, and nothing has happened since"
		}
		w.began, w.beganAt = m.moment(), m.sim.elapsed
		h.l.walks[endpoint] = m.sim.elapsed
		if p := h.who(endpoint); p != nil {
			p.judged++
		}
		return ""
	})()
	if err := h.l.act(context.Background(), "validate", endpoint); err != nil {
		return err
	}
	if p := h.who(endpoint); unfit || p != nil && p.unfit {
		h.turnDown(p, name, endpoint)
		return errors.New("unfit")
	}
	if w := h.names[name]; w != nil {
		w.validated, w.versions = endpoint, versions
	}
	return nil
}

// turnDown notes that a program is not taken: not again at once if another one serves.
func (h *strict) turnDown(p *program, name, endpoint string) {
	m := h.l.m
	m.owe(endpoint, true)
	if p == nil || h.l.dead {
		return
	}
	p.refused, p.unwanted = true, true
	// That another one has died may be found out at any moment.
	quiet := p.turnedDownAt == m.moment() && !slices.ContainsFunc(m.programs, func(o *program) bool {
		return o.dead && m.sim.elapsed-o.diedAt < 20*time.Second
	})
	if gap := m.sim.elapsed - p.turnedDown; quiet && gap < 20*time.Second && h.served(p, name) {
		m.complain("program %d is tried again %v after it was turned down while another one serves", p.number, gap)
	}
	p.turnedDown, p.turnedDownAt = m.sim.elapsed, -1
	if h.served(p, name) {
		p.turnedDownAt = h.names[name].began
		if p.forgiven >= h.names[name].beganAt {
			p.turnedDownAt = -1
		}
	}
}

// served says that an older program serves under a name beyond doubt.
func (h *strict) served(than *program, name string) bool {
	return slices.ContainsFunc(h.l.m.programs, func(p *program) bool {
		return p != than && p.pristine && p.rank < than.rank && p.valid.Type == h.ptype && p.valid.Name == name
	})
}

func (h *strict) RegisterPlugin(name, endpoint string, versions []string, timeout *time.Duration) error {
	return h.register(context.Background(), name, endpoint, versions, timeout)
}

func (h *strict) register(ctx context.Context, name, endpoint string, versions []string, timeout *time.Duration) error {
	m := h.l.m
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
	w := h.names[name]
	if w == nil {
		return errKilled
	}
	given := false
	defer func() {
		if !given {
			w.given = nil
		}
	}()
	if err := h.l.act(ctx, "register", endpoint); err != nil {
		return err
	}
	if p := h.who(endpoint); p != nil && p.unwelcome {
		h.turnDown(p, name, endpoint)
		return errors.New("unwelcome")
	}
	given = true
	m.owe(endpoint, false)
	w.held, w.calm = endpoint, w.began
	if !slices.Contains(w.given, endpoint) {
		w.given = append(w.given, endpoint)
	}
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
	_ = h.l.act(context.Background(), "deregister", "")
}

func (h *strict) KeepRegistration(name string, _ error) bool {
	defer h.begin("keep", name, func(w *walk) string {
		if w.held == "" {
			return "it is not registered"
		}
		return ""
	})()
	_ = h.l.act(context.Background(), "keep", "")
	return h.l.m.set.has("keeps")
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
	_ = h.l.act(context.Background(), "gone", "")
}

// strictRegistrar has a handler take a context, and find things out.
type strictRegistrar struct{ h *strict }

func (r strictRegistrar) RegisterPluginContext(
	ctx context.Context, name, endpoint string, versions []string, timeout *time.Duration,
) (found plugin.Registration, err error) {
	if err := r.h.register(ctx, name, endpoint, versions, timeout); err != nil {
		return found, err
	}
	if r.h.l.m.set.has("roles") {
		found.Roles = []string{"role", r.h.ptype}
		if strings.HasPrefix(versions[0], "v") {
			found.Roles = append(found.Roles, "other")
		}
		found.Version, found.Details = "7", map[string]string{"endpoint": endpoint}
	}
	p := r.h.who(endpoint)
	found.WatchEndpoint = p != nil && p.watched
	return found, nil
}

// strictDirs has a handler look at where a socket was found.
type strictDirs struct{ h *strict }

func (d strictDirs) ValidatePluginInDir(name, endpoint string, versions []string, inDeprecatedDir bool) error {
	return d.h.validate(name, endpoint, versions, inDeprecatedDir && d.h.l.m.set.has("modern"))
}

// clientTimeout is configured for some plugins only.
func clientTimeout(ptype, name string) *time.Duration {
	timeout := time.Duration(ptype[0]) * time.Second
	if name == "foo" {
		return &timeout
	}
	return nil
}
