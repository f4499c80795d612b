package handlertest

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/patchbay-dev/patchbay/cache"
)

type testCase struct {
	name string
	run  func(s *session)
}

var cases = []testCase{
	{"Validate", validate},
	{"Repeated", repeated},
	{"Unknown", unknown},
	{"Replaced", replaced},
	{"Survivor", survivor},
	{"FailedRegister", failedRegister},
	{"FailedReRegister", failedReRegister},
	{"PluginDies", pluginDies},
	{"NoLockOverCall", noLockOverCall},
	{"ContextEnds", contextEnds},
	{"ContextOfThePast", contextOfThePast},
	{"CrashAtRest", crashAtRest},
	{"CrashInTheMiddle", crashInTheMiddle},
	{"ConcurrentNames", concurrentNames},
	{"Closed", closed},
}

// validate checks that ValidatePlugin refuses only invalid plugins, and keeps nothing.
func validate(s *session) {
	p := s.plugin(wellBehaved)
	for range 3 {
		if err := s.validate(p.name, p.socket, s.suite.Versions); err != nil {
			s.fail("ValidatePlugin of plugin %s, which is valid: %w", p.name, err)
		}
	}
	for _, versions := range s.suite.WrongVersions {
		if s.validate(p.name, p.socket, versions) == nil {
			s.fail("ValidatePlugin accepts the versions %q, which are wrong", versions)
		}
	}
	for _, name := range s.suite.WrongNames {
		if s.validate(name, p.socket, s.suite.Versions) == nil {
			s.fail("ValidatePlugin accepts the name %q, which is wrong", name)
		}
	}
	s.stage = "after ValidatePlugin alone"
	s.clean(p)
}

// repeated registers the same plugin several times, and deregisters it twice.
func repeated(s *session) {
	const times = 16
	p := s.plugin(wellBehaved)
	for range times {
		s.register(p)
	}
	if !s.eventually(func() bool { return p.open() < times }) {
		s.fail("registered %d times at the same endpoint, there are %d connections", times, p.open())
	}
	s.stage = "after DeRegisterPlugin"
	for range 2 {
		s.deregister(p.name)
		s.released(p)
	}
	s.lives(p)
}

// unknown checks that calls for an unknown plugin do nothing, and do not affect other plugins.
func unknown(s *session) {
	other, never := s.plugin(wellBehaved), s.plugin(wellBehaved)
	s.register(other)
	made := other.accepted()
	s.stage = "after calls for an unknown plugin and an unknown endpoint"
	s.deregister(never.name)
	s.gone(never)
	s.gone(s.instance(other.name, absent))
	s.keeps(other, made)
	s.deregister(other.name)
	s.clean(other, never)
}

// replaced registers newer instances of a plugin, and checks that InstanceGone releases the older ones.
func replaced(s *session) {
	current := s.plugin(wellBehaved)
	s.register(current)
	all := []*fakePlugin{current}
	s.stage = "a newer instance is registered, and the older is gone"
	for range 3 {
		next := s.instance(current.name, wellBehaved)
		all = append(all, next)
		s.register(next)
		made := next.accepted()
		s.gone(current)
		s.disconnected(current)
		s.keeps(next, made)
		current = next
	}
	s.deregister(current.name)
	s.gone(all[0])
	s.clean(all...)
}

// survivor deregisters the newer instance and registers the older one again.
func survivor(s *session) {
	older := s.plugin(wellBehaved)
	newer := s.instance(older.name, wellBehaved)
	s.stage = "after DeRegisterPlugin none of the endpoints counts"
	for range 3 {
		s.register(older, newer)
		s.deregister(newer.name)
		s.released(older, newer)
	}
	s.register(older)
	s.deregister(older.name)
	s.clean(older, newer)
}

type wrongPlugin struct {
	what string // completes "a plugin that"
	behaviour
	services Services
	must     bool // RegisterPlugin has to refuse it, and cannot do so without looking
}

func (s *session) wrongPlugins() []wrongPlugin {
	var all []wrongPlugin
	for _, b := range []behaviour{absent, hangsUp, failing} {
		all = append(all, wrongPlugin{b.String(), b, s.suite.Serve, false})
	}
	for what, services := range s.suite.WrongPlugins {
		all = append(all, wrongPlugin{"is wrong: " + what, wellBehaved, services, true})
	}
	return all
}

// registerWrong registers a plugin that may be refused, and deregisters it if it was not.
func (s *session) registerWrong(wrong wrongPlugin, name string) *fakePlugin {
	s.stage = "a plugin that " + wrong.what
	p := s.start(name, wrong.behaviour, wrong.services)
	err := s.try(p)
	outcome := "succeeded"
	switch {
	case err != nil:
		outcome = "failed (" + err.Error() + ")"
	case wrong.must:
		s.fail("RegisterPlugin accepts it")
	default:
		s.deregister(p.name) // as the handler has the plugin now, it has to be told
	}
	s.stage = fmt.Sprintf("after RegisterPlugin of a plugin that %s, which %s", wrong.what, outcome)
	return p
}

// failedRegister checks that a failed registration leaves nothing behind, and that the name can be registered afterwards.
func failedRegister(s *session) {
	for _, wrong := range s.wrongPlugins() {
		p := s.registerWrong(wrong, s.name())
		s.clean(p)
		s.lives(s.instance(p.name, wellBehaved))
	}
}

// failedReRegister checks that after a failed registration the handler has no instance of that name, not even the earlier one.
func failedReRegister(s *session) {
	for _, wrong := range s.wrongPlugins() {
		older := s.plugin(wellBehaved)
		s.register(older)
		newer := s.registerWrong(wrong, older.name)
		s.released(older, newer)
		s.register(older)
		s.deregister(older.name)
		s.clean(older, newer)
	}
}

// pluginDies checks that plugins that have exited are released.
func pluginDies(s *session) {
	older := s.plugin(wellBehaved)
	s.register(older)
	older.stop()
	newer := s.instance(older.name, wellBehaved)
	s.register(newer)
	s.gone(older)
	s.has(newer)
	newer.stop()
	s.deregister(newer.name)
	s.clean(older, newer)
}

// noLockOverCall registers and deregisters plugins while others hang.
func noLockOverCall(s *session) {
	turned := s.plugin(wellBehaved) // hangs later
	s.register(turned)
	hanging := []*fakePlugin{s.plugin(stuck), s.plugin(silent)}
	var results []<-chan error
	var ends []func()
	for _, p := range hanging {
		result, end := s.begin(p)
		results, ends = append(results, result), append(ends, end)
	}
	turned.stuck.Store(true)
	deregistered := make(chan error, 1)
	go func() { deregistered <- failureOf(func() { s.deregister(turned.name) }) }()

	err := failureOf(s.others)
	for _, end := range ends {
		end()
	}
	hung := <-deregistered
	if err != nil {
		s.fail("while other plugins hang: %w", err)
	}
	if hung != nil {
		s.fail("of a plugin that hangs: %w", hung)
	}
	s.stage = "plugins hung and have ended"
	for i, p := range hanging {
		p.stop()
		if s.await("RegisterPlugin("+p.name+")", results[i]) == nil {
			s.deregister(p.name)
		}
	}
	s.clean(append(hanging, turned)...)
}

// others registers, replaces and deregisters plugins that behave well.
func (s *session) others() {
	for range 3 {
		p := s.plugin(wellBehaved)
		next := s.instance(p.name, wellBehaved)
		s.register(p, next)
		s.gone(p)
		s.deregister(p.name)
		s.released(p, next)
	}
}

func (s *session) needContext() {
	if _, ok := s.PluginHandler.(cache.ContextRegistrar); !ok {
		s.fail("%w: it has no RegisterPluginContext", errNotApplicable)
	}
}

// contextEnds checks that a registration ends soon after its context, and leaves nothing behind.
func contextEnds(s *session) {
	s.needContext()
	for _, b := range []behaviour{stuck, silent, absent, wellBehaved} {
		s.stage = "after the end of the context of a registration, of a plugin that " + b.String()
		p := s.plugin(b)
		begin := s.beginBadly
		if b == wellBehaved {
			begin = s.begin
		}
		result, end := begin(p)
		end()
		if s.await("RegisterPluginContext("+p.name+")", result) == nil {
			s.deregister(p.name)
		}
		s.clean(p)
		s.lives(s.instance(p.name, wellBehaved))
	}
}

// contextOfThePast checks that a registered plugin stays in use when the context of its registration ends.
func contextOfThePast(s *session) {
	s.needContext()
	p := s.plugin(wellBehaved)
	result, end := s.begin(p)
	defer end()
	if err := s.await("RegisterPluginContext("+p.name+")", result); err != nil {
		s.fail("RegisterPluginContext of plugin %s, which behaves well: %w", p.name, err)
	}
	s.has(p)
	made := p.accepted()
	end()
	s.stage = "after the end of the context of a registration that had succeeded"
	s.keeps(p, made)
	s.deregister(p.name)
	s.clean(p)
}

// crash closes the handler without deregistering anything, and creates another one over the same state.
func (s *session) crash() (former cache.PluginHandler) {
	former = s.PluginHandler
	s.closeHandler()
	s.open()
	s.stage = "a handler made again over the same state"
	return former
}

// forget deregisters plugins from a handler without Close, which only the end of its process would release.
func (s *session) forget(former cache.PluginHandler, names ...string) {
	if _, ok := former.(io.Closer); !ok {
		s.deregisterFrom(former, names...)
	}
}

// crashAtRest restarts the handler with registered plugins. Some of them register again, also at another endpoint, and some do not.
func crashAtRest(s *session) {
	again, elsewhere, never := s.plugin(wellBehaved), s.plugin(wellBehaved), s.plugin(wellBehaved)
	s.register(again, elsewhere, never)
	former := s.crash()
	moved := s.instance(elsewhere.name, wellBehaved)
	s.register(again, moved)
	s.deregister(again.name, moved.name, never.name)
	s.forget(former, again.name, elsewhere.name, never.name)
	s.released(again, elsewhere, moved, never)
}

// crashInTheMiddle restarts the handler during a registration.
func crashInTheMiddle(s *session) {
	for _, b := range []behaviour{stuck, silent} {
		p := s.plugin(b)
		result, end := s.beginBadly(p)
		end()
		p.stop()
		former := s.crash()
		_ = s.await("RegisterPlugin("+p.name+"), when the handler ends", result)
		good := s.instance(p.name, wellBehaved)
		s.register(good)
		s.deregister(good.name)
		s.forget(former, p.name)
		s.released(p, good)
	}
}

// concurrentNames registers and deregisters plugins with different names concurrently.
func concurrentNames(s *session) {
	const names, rounds = 16, 6
	errs := make([]error, names)
	var running sync.WaitGroup
	for i := range names {
		a := s.plugin(wellBehaved)
		b := s.instance(a.name, wellBehaved)
		running.Go(func() {
			errs[i] = failureOf(func() {
				for range rounds {
					s.register(a, b)
					s.gone(a)
					s.has(b)
					s.deregister(b.name)
					s.released(a, b)
				}
			})
		})
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		s.fail("%w", err)
	}
	s.clean()
}

// closed checks that Close releases everything, and that later calls do no harm.
func closed(s *session) {
	if _, ok := s.PluginHandler.(io.Closer); !ok {
		s.fail("%w: it has no Close", errNotApplicable)
	}
	a, b := s.plugin(wellBehaved), s.plugin(wellBehaved)
	s.register(a, b)
	s.closeHandler()
	s.stage = "after Close"
	s.disconnected(a)
	s.disconnected(b)
	// After a change of the configuration, plugins of the former handler may still be being deregistered.
	s.deregister(a.name)
	s.gone(b)
	s.deregister(b.name)
}
