package handlertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"go.uber.org/goleak"

	"github.com/patchbay-dev/patchbay/cache"
)

const defaultPatience = 20 * time.Second

var errNotApplicable = errors.New("not applicable to this handler")

// session is a handler under test.
type session struct {
	config   Config
	stateDir string
	patience time.Duration
	cache.PluginHandler

	sockets  string // short directory
	plugins  []*fakePlugin
	names    int
	baseline goleak.Option
}

// run runs one case on a handler of its own, and then makes sure that nothing is left of it.
func run(config Config, c testCase, stateDir string) (err error) {
	// The directory of a test may be too deep for the path of a socket.
	sockets, err := os.MkdirTemp("", "handlertest")
	if err != nil {
		return err
	}
	s := &session{config: config, stateDir: stateDir, sockets: sockets, patience: cmp.Or(config.Patience, defaultPatience)}
	before := goleak.IgnoreCurrent()
	if err := s.open(); err != nil {
		return errors.Join(err, os.RemoveAll(sockets))
	}
	err = s.warm()
	if err == nil {
		err = c.run(s)
	}
	err = errors.Join(err, s.closeHandler())
	for _, p := range s.plugins {
		p.stop()
	}
	if err == nil {
		if leaked := s.noGoroutines(before); leaked != nil {
			err = fmt.Errorf("after all plugins were deregistered: %w", leaked)
		}
	}
	return errors.Join(err, os.RemoveAll(sockets))
}

// open makes the handler anew, over the same state.
func (s *session) open() (err error) {
	s.PluginHandler, err = s.config.NewHandler(s.stateDir)
	if err != nil {
		return fmt.Errorf("cannot make the handler: %w", err)
	}
	return nil
}

// warm registers and deregisters a plugin, so that goroutines of the handler's own that are there for good run, and notes what runs.
func (s *session) warm() error {
	p := s.plugin(wellBehaved)
	err := s.register(p)
	if err == nil {
		err = s.deregister(p.name)
	}
	if err == nil {
		err = s.released(p)
	}
	p.stop()
	s.baseline = goleak.IgnoreCurrent()
	return err
}

func (s *session) closeHandler() error {
	c, ok := s.PluginHandler.(io.Closer)
	if !ok {
		return nil
	}
	return s.soon("Close", c.Close)
}

// noGoroutines makes sure that no goroutines run any more that did not run before.
func (s *session) noGoroutines(before goleak.Option) error {
	deadline := time.Now().Add(s.patience)
	for {
		err := goleak.Find(before)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// name returns the name of a plugin that was not there before.
func (s *session) name() string {
	s.names++
	if s.config.Name != nil {
		return s.config.Name(s.names - 1)
	}
	return fmt.Sprintf("plugin-%d.example.com", s.names-1)
}

// plugin starts a plugin with a name of its own.
func (s *session) plugin(b behaviour) *fakePlugin { return s.instance(s.name(), b) }

// instance starts another instance of a plugin.
func (s *session) instance(name string, b behaviour) *fakePlugin {
	return s.start(name, b, s.config.Serve)
}

func (s *session) start(name string, b behaviour, services Services) *fakePlugin {
	p := startPlugin(filepath.Join(s.sockets, fmt.Sprintf("%d.sock", len(s.plugins))), name, b, services)
	s.plugins = append(s.plugins, p)
	return p
}

// soon calls f, and fails if it panics or does not return soon.
func (s *session) soon(what string, f func() error) error {
	result := make(chan error, 1)
	go func() { result <- guarded(what, f) }()
	timer := time.NewTimer(s.patience)
	defer timer.Stop()
	select {
	case err := <-result:
		return err
	case <-timer.C:
		return fmt.Errorf("%s did not return within %v: %w", what, s.patience, errTooLate)
	}
}

var (
	errTooLate  = errors.New("too late")
	errPanicked = errors.New("panicked")
)

// broken reports whether a call did worse than to return an error.
func broken(err error) bool { return errors.Is(err, errTooLate) || errors.Is(err, errPanicked) }

func guarded(what string, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s %w: %v\n%s", what, errPanicked, r, debug.Stack())
		}
	}()
	return f()
}

func (s *session) validate(name, endpoint string, versions []string) error {
	return s.soon("ValidatePlugin("+name+")", func() error {
		if h, ok := s.PluginHandler.(cache.DeprecatedDirValidator); ok {
			return h.ValidatePluginInDir(name, endpoint, versions, false)
		}
		return s.ValidatePlugin(name, endpoint, versions)
	})
}

// begin begins to register a plugin; end ends the context of that.
func (s *session) begin(p *fakePlugin) (result <-chan error, end func()) {
	h := s.PluginHandler
	ctx, cancel := context.WithCancel(context.Background())
	what := "RegisterPlugin(" + p.name + ")"
	done := make(chan error, 1)
	go func() {
		done <- guarded(what, func() error {
			if c, ok := h.(cache.ContextRegistrar); ok {
				_, err := c.RegisterPluginContext(ctx, p.name, p.socket, s.config.Versions, nil)
				return err
			}
			return h.RegisterPlugin(p.name, p.socket, s.config.Versions, nil)
		})
	}()
	return done, cancel
}

// try registers a plugin.
func (s *session) try(p *fakePlugin) error {
	result, end := s.begin(p)
	defer end() // as the pipeline does when the call has returned
	return s.await("RegisterPlugin("+p.name+")", result)
}

func (s *session) await(what string, result <-chan error) error {
	return s.soon(what, func() error { return <-result })
}

// register validates and registers a plugin that behaves well, and makes sure that the handler has it.
func (s *session) register(p *fakePlugin) error {
	if err := s.validate(p.name, p.socket, s.config.Versions); err != nil {
		return fmt.Errorf("ValidatePlugin of plugin %s, which is valid: %w", p.name, err)
	}
	if err := s.try(p); err != nil {
		return fmt.Errorf("RegisterPlugin of plugin %s, which behaves well: %w", p.name, err)
	}
	return s.has(p)
}

// known says whether the handler has a plugin, or what is supposed if that cannot be asked.
func (s *session) known(p *fakePlugin, supposed bool) (bool, error) {
	if s.config.Has == nil {
		return supposed, nil
	}
	answer := make(chan bool, 1)
	err := s.soon("Has("+p.name+")", func() error {
		answer <- s.config.Has(s.PluginHandler, p.name)
		return nil
	})
	if err != nil {
		return false, err
	}
	return <-answer, nil
}

// has makes sure that the handler has a plugin.
func (s *session) has(p *fakePlugin) error {
	if known, err := s.known(p, true); err != nil {
		return err
	} else if !known {
		return fmt.Errorf("plugin %s is registered, and the handler does not have it", p.name)
	}
	if s.config.HoldsConnection {
		if err := s.eventually(func() bool { return p.open() > 0 }); err != nil {
			return fmt.Errorf("plugin %s is registered, and the handler has no connection to its endpoint: %w", p.name, err)
		}
	}
	return nil
}

func (s *session) deregister(name string) error {
	return s.soon("DeRegisterPlugin("+name+")", func() error {
		s.DeRegisterPlugin(name)
		return nil
	})
}

// gone tells the handler that a superseded instance went, if it wants to know.
func (s *session) gone(p *fakePlugin) error {
	h, ok := s.PluginHandler.(cache.InstanceGoneHandler)
	if !ok {
		return nil
	}
	return s.soon("InstanceGone("+p.name+")", func() error {
		h.InstanceGone(p.name, p.socket)
		return nil
	})
}

// released makes sure that the handler has nothing of the plugins, which have to be of one name, any more.
func (s *session) released(plugins ...*fakePlugin) error {
	for _, p := range plugins {
		if known, err := s.known(p, false); err != nil {
			return err
		} else if known {
			return fmt.Errorf("plugin %s is not registered, and the handler has it", p.name)
		}
		if err := s.disconnected(p); err != nil {
			return err
		}
	}
	return nil
}

// disconnected makes sure that no connection to a plugin is left.
func (s *session) disconnected(p *fakePlugin) error {
	if err := s.eventually(func() bool { return p.open() == 0 }); err != nil {
		return fmt.Errorf("connections to plugin %s are left: %d of the %d made are open: %w", p.name, p.open(), p.accepted(), err)
	}
	return nil
}

// clean makes sure that the handler has nothing of the plugins, and ends all plugins, none of which may be registered, to make sure that
// nothing runs any more.
func (s *session) clean(plugins ...*fakePlugin) error {
	if err := s.released(plugins...); err != nil {
		return err
	}
	for _, p := range s.plugins {
		p.stop()
	}
	if err := s.noGoroutines(s.baseline); err != nil {
		return fmt.Errorf("goroutines are left: %s", firstLines(err.Error()))
	}
	return nil
}

// eventually waits until something is so.
func (s *session) eventually(is func() bool) error {
	deadline := time.Now().Add(s.patience)
	for !is() {
		if time.Now().After(deadline) {
			return fmt.Errorf("not otherwise within %v", s.patience)
		}
		<-time.After(time.Millisecond)
	}
	return nil
}

func firstLines(s string) string {
	const limit = 4 << 10
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}
