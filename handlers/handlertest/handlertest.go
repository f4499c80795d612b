// Package handlertest is the conformance suite for implementations of cache.PluginHandler: run a [Suite] on yours.
//
// It calls a handler in every way the pipeline may, with plugins that behave, fail, hang, die and get replaced, and checks that
//
//   - every call may be repeated, and comes for plugins that the handler does not know;
//   - a new handler over the same state, after a crash at any moment, accepts its plugins again;
//   - no lock is held across a call: a hung plugin only delays its own name;
//   - a failed RegisterPlugin leaves nothing behind: no connection, no goroutine, no instance, without DeRegisterPlugin;
//   - InstanceGone closes the connections to that endpoint and no others;
//   - RegisterPluginContext ends with its context, and what it left running does not;
//   - versions and names that the handler does not support are refused;
//   - different names do not interfere with each other, also under the race detector;
//   - after all plugins were deregistered, and after Close, nothing is left.
//
// It cannot check what the handler does with a plugin; that is for the handler's own tests.
package handlertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/callback"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// Suite is the conformance suite for one handler. NewHandler and Versions are required.
type Suite struct {
	// NewHandler makes a handler that keeps its state, if it has any, in the directory dir. The suite calls it again for the same
	// directory, after it has closed the handler if that is an io.Closer, to recreate the handler over the same state. Timeouts of the
	// handler should be shorter than Patience.
	NewHandler func(dir string) (cache.PluginHandler, error)
	// Versions are versions that the handler supports; the suite's plugins announce them.
	Versions []string
	// Serve registers the services of a plugin that behaves well. If it is nil, the plugins of the suite are gRPC servers without services.
	Serve Services
	// Name returns the name of plugin i, different for different i. If it is nil, plugins are called plugin-0.example.com and so on.
	Name func(i int) string
	// WrongVersions are lists of versions, and WrongNames are names, that ValidatePlugin must refuse.
	WrongVersions [][]string
	WrongNames    []string
	// WrongPlugins are plugins that RegisterPlugin must refuse, by what is wrong with them. In addition, the suite has plugins that cannot
	// be connected to, whose calls all fail, or that hang up; the handler may register those.
	WrongPlugins map[string]Services
	// HoldsConnection means that the handler keeps a connection to the endpoint of every registered plugin.
	HoldsConnection bool
	// Has, if it is not nil, reports whether the handler has an instance of a plugin.
	Has func(h cache.PluginHandler, pluginName string) bool
	// Patience bounds each wait for something that should happen soon (default 20 s). A correct handler never makes the suite wait that
	// long.
	Patience time.Duration
}

// Services registers gRPC services of the plugin with that name.
type Services func(s grpc.ServiceRegistrar, pluginName string)

// Test runs the suite, each case as a subtest with a handler and a directory of its own. It counts goroutines: nothing else may run at the
// same time in the test's process.
func (suite Suite) Test(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := suite.run(c)
			switch {
			case errors.Is(err, errNotApplicable):
				t.Skip(err)
			case err != nil:
				t.Error(err)
			}
		})
	}
}

// Run is Test for programs other than tests, for example to check third-party handlers. It blocks until the suite has ended. The error has
// the names and the failures of all cases that failed.
func (suite Suite) Run() error {
	var errs []error
	for _, c := range cases {
		if err := suite.run(c); err != nil && !errors.Is(err, errNotApplicable) {
			errs = append(errs, fmt.Errorf("%s: %w", c.name, err))
		}
	}
	return errors.Join(errs...)
}

const defaultPatience = 20 * time.Second

var (
	errNotApplicable = errors.New("not applicable to this handler")
	errUnreturned    = errors.New("did not return")
)

// session is a handler under test. Its steps end the case when they fail; see failureOf.
type session struct {
	cache.PluginHandler
	suite Suite // with the default of Patience

	dir      string // a short one, for sockets, with the handler's state in it
	plugins  []*fakePlugin
	names    int
	baseline goleak.Option
	stage    string // after or during what the next steps are, if these alone do not say what went wrong
}

// run runs one case with a new handler, and then checks that nothing of it is left.
func (suite Suite) run(c testCase) error {
	if suite.NewHandler == nil || len(suite.Versions) == 0 || suite.Patience < 0 {
		return errors.New("the Suite cannot be used: it needs NewHandler, Versions, and a Patience that is not negative")
	}
	// The directory of a test may be too deep for the path of a socket.
	const room = 64
	dir, err := os.MkdirTemp(sock.TempDir(room), "handlertest")
	if err != nil {
		return err
	}
	suite.Patience = cmp.Or(suite.Patience, defaultPatience)
	s := &session{suite: suite, dir: dir}
	before := goleak.IgnoreCurrent()
	err = failureOf(func() {
		s.open()
		s.warm()
		c.run(s)
	})
	s.stage = ""
	err = errors.Join(err, failureOf(s.closeHandler))
	s.stopPlugins()
	if err == nil {
		s.stage = "after all plugins were deregistered"
		err = failureOf(func() { s.noGoroutines(before) })
	}
	return errors.Join(err, os.RemoveAll(dir))
}

type failure struct{ error }

// fail ends the case. It does not return.
func (s *session) fail(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	if s.stage != "" {
		err = fmt.Errorf("%s: %w", s.stage, err)
	}
	panic(failure{err})
}

// failureOf runs steps and returns the failure that ended them.
func failureOf(steps func()) error {
	err := callback.Call(func() error { steps(); return nil })
	if unreturned, ok := errors.AsType[*callback.Error](err); ok {
		if failed, ok := unreturned.Panic.(failure); ok {
			return failed.error
		}
		return fmt.Errorf("a function of the Suite did not return: %w\n%s", err, unreturned.Stack)
	}
	return err
}

// open creates a handler over the state in dir.
func (s *session) open() {
	state := filepath.Join(s.dir, "state")
	err := os.MkdirAll(state, 0o700)
	if err == nil {
		s.PluginHandler, err = s.suite.NewHandler(state)
	}
	if err == nil && s.PluginHandler == nil {
		err = errors.New("NewHandler returned neither a handler nor an error")
	}
	if err != nil {
		s.PluginHandler = nil // not a nil pointer, which is there to be closed
		s.fail("cannot create the handler: %w", err)
	}
}

// warm registers and deregisters a plugin, so that permanent goroutines of the handler are started, and records the running goroutines as
// the baseline.
func (s *session) warm() {
	p := s.plugin(wellBehaved)
	s.register(p)
	s.deregister(p.name)
	s.released(p)
	p.stop()
	s.baseline = goleak.IgnoreCurrent()
}

func (s *session) closeHandler() {
	if c, ok := s.PluginHandler.(io.Closer); ok {
		if err := s.call("Close", c.Close); err != nil {
			s.fail("Close: %w", err)
		}
	}
}

func (s *session) noGoroutines(before goleak.Option) {
	var left error
	gone := s.eventually(func() bool {
		left = goleak.Find(before)
		return left == nil
	})
	if !gone {
		s.fail("goroutines are left: %s", untrusted.Cut(left.Error(), 4<<10))
	}
}

// name returns a new name of a plugin.
func (s *session) name() string {
	s.names++
	if s.suite.Name != nil {
		return s.suite.Name(s.names - 1)
	}
	return fmt.Sprintf("plugin-%d.example.com", s.names-1)
}

func (s *session) plugin(b behaviour) *fakePlugin { return s.instance(s.name(), b) }

func (s *session) instance(name string, b behaviour) *fakePlugin {
	return s.start(name, b, s.suite.Serve)
}

func (s *session) start(name string, b behaviour, services Services) *fakePlugin {
	socket := filepath.Join(s.dir, fmt.Sprintf("%d.sock", len(s.plugins)))
	p := &fakePlugin{name: name, socket: socket, listener: new(countingListener), stop: func() {}}
	s.plugins = append(s.plugins, p)
	p.start(b, services)
	return p
}

func (s *session) stopPlugins() {
	for _, p := range s.plugins {
		p.stop()
	}
}

// call calls the handler and returns its error. The case fails if it panics or does not return soon.
func (s *session) call(what string, f func() error) error {
	result := make(chan error, 1)
	go func() { result <- guarded(what, f) }()
	return s.await(what, result)
}

// await waits for a call that was started before, as call does.
func (s *session) await(what string, result <-chan error) (err error) {
	timer := time.NewTimer(s.suite.Patience)
	defer timer.Stop()
	select {
	case err = <-result:
	case <-timer.C:
		s.fail("%s did not return within %v", what, s.suite.Patience)
	}
	if errors.Is(err, errUnreturned) {
		s.fail("%w", err)
	}
	return err
}

func guarded(what string, f func() error) error {
	err := callback.Call(f)
	if unreturned, ok := errors.AsType[*callback.Error](err); ok {
		return fmt.Errorf("%s %w: %w\n%s", what, errUnreturned, err, unreturned.Stack)
	}
	return err
}

func (s *session) validate(name, endpoint string, versions []string) error {
	return s.call("ValidatePlugin("+name+")", func() error {
		if h, ok := s.PluginHandler.(cache.DeprecatedDirValidator); ok {
			return h.ValidatePluginInDir(name, endpoint, versions, false)
		}
		return s.ValidatePlugin(name, endpoint, versions)
	})
}

// begin starts to register a plugin; end cancels the context.
func (s *session) begin(p *fakePlugin) (result <-chan error, end func()) {
	h := s.PluginHandler
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- guarded("RegisterPlugin("+p.name+")", func() error {
			if c, ok := h.(cache.ContextRegistrar); ok {
				_, err := c.RegisterPluginContext(ctx, p.name, p.socket, s.suite.Versions, nil)
				return err
			}
			return h.RegisterPlugin(p.name, p.socket, s.suite.Versions, nil)
		})
	}()
	return done, cancel
}

// beginBadly starts to register a plugin that does not answer, and returns when the handler has connected, or after a short while.
func (s *session) beginBadly(p *fakePlugin) (result <-chan error, end func()) {
	result, end = s.begin(p)
	within(100*time.Millisecond, func() bool { return p.accepted() > 0 })
	return result, end
}

func (s *session) try(p *fakePlugin) error {
	result, end := s.begin(p)
	defer end() // as the pipeline does when the call has returned
	return s.await("RegisterPlugin("+p.name+")", result)
}

// register validates and registers plugins that behave well, and checks that the handler has them.
func (s *session) register(plugins ...*fakePlugin) {
	for _, p := range plugins {
		if err := s.validate(p.name, p.socket, s.suite.Versions); err != nil {
			s.fail("ValidatePlugin of plugin %s, which is valid: %w", p.name, err)
		}
		if err := s.try(p); err != nil {
			s.fail("RegisterPlugin of plugin %s, which behaves well: %w", p.name, err)
		}
		s.has(p)
	}
}

// known reports whether the handler has a plugin. It returns supposed if the suite has no Has.
func (s *session) known(p *fakePlugin, supposed bool) bool {
	known := supposed
	if s.suite.Has != nil {
		_ = s.call("Has("+p.name+")", func() error {
			known = s.suite.Has(s.PluginHandler, p.name)
			return nil
		})
	}
	return known
}

func (s *session) has(p *fakePlugin) {
	if !s.known(p, true) {
		s.fail("plugin %s is registered, and the handler does not have it", p.name)
	}
	if s.suite.HoldsConnection && !s.eventually(func() bool { return p.open() > 0 }) {
		s.fail("plugin %s is registered, and the handler has no connection to its endpoint", p.name)
	}
}

func (s *session) deregister(names ...string) { s.deregisterFrom(s.PluginHandler, names...) }

func (s *session) deregisterFrom(h cache.PluginHandler, names ...string) {
	for _, name := range names {
		_ = s.call("DeRegisterPlugin("+name+")", func() error {
			h.DeRegisterPlugin(name)
			return nil
		})
	}
}

// gone calls InstanceGone for a superseded instance, if the handler implements it.
func (s *session) gone(p *fakePlugin) {
	if h, ok := s.PluginHandler.(cache.InstanceGoneHandler); ok {
		_ = s.call("InstanceGone("+p.name+")", func() error {
			h.InstanceGone(p.name, p.socket)
			return nil
		})
	}
}

// keeps checks that the handler still has a plugin, and its connections: made is the number of connections so far.
func (s *session) keeps(p *fakePlugin, made int64) {
	if s.suite.HoldsConnection {
		<-time.After(50 * time.Millisecond) //nolint:forbidigo // what the handler let go of shows when the plugin has noticed
		if p.open() == 0 || p.accepted() != made {
			s.fail("the connection to plugin %s was let go of", p.name)
		}
	}
	s.has(p)
}

// released checks that the handler has no instance of the plugins and no connection to them.
func (s *session) released(plugins ...*fakePlugin) {
	for _, p := range plugins {
		if s.known(p, false) {
			s.fail("plugin %s is not registered, and the handler has it", p.name)
		}
		s.disconnected(p)
	}
}

func (s *session) disconnected(p *fakePlugin) {
	if !s.eventually(func() bool { return p.open() == 0 }) {
		s.fail("connections to plugin %s are left: %d of the %d made are open after %v", p.name, p.open(), p.accepted(), s.suite.Patience)
	}
}

// clean checks that the handler has released the plugins, stops all plugins and checks that no goroutine is left. No plugin may be
// registered.
func (s *session) clean(plugins ...*fakePlugin) {
	s.released(plugins...)
	s.stopPlugins()
	s.noGoroutines(s.baseline)
}

// lives checks that a plugin that behaves well can be registered and deregistered.
func (s *session) lives(p *fakePlugin) {
	s.register(p)
	s.deregister(p.name)
	s.clean(p)
}

// eventually waits until is returns true, for at most Patience, and reports whether it did.
func (s *session) eventually(is func() bool) bool { return within(s.suite.Patience, is) }

func within(patience time.Duration, is func() bool) bool {
	for deadline := time.Now().Add(patience); !is(); {
		if time.Now().After(deadline) {
			return false
		}
		<-time.After(time.Millisecond) //nolint:forbidigo // a handler tells nobody when it has let go of something
	}
	return true
}
