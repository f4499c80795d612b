package handlertest

import "fmt"

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

// validate: what is wrong is refused, what is right is not, and nothing is remembered.
func validate(s *session) {
	p := s.plugin(wellBehaved)
	for range 3 {
		if err := s.validate(p.name, p.socket, s.config.Versions); err != nil {
			s.fail("ValidatePlugin of plugin %s, which is valid: %w", p.name, err)
		}
	}
	for _, versions := range s.config.WrongVersions {
		if s.validate(p.name, p.socket, versions) == nil {
			s.fail("ValidatePlugin accepts the versions %q, which are wrong", versions)
		}
	}
	for _, name := range s.config.WrongNames {
		if s.validate(name, p.socket, s.config.Versions) == nil {
			s.fail("ValidatePlugin accepts the name %q, which is wrong", name)
		}
	}
	s.stage = "after ValidatePlugin alone"
	s.clean(p)
}

// repeated: the same plugin is registered again and again, and deregistered twice.
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

// unknown: calls for a plugin that the handler does not have do nothing, to others neither.
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

// replaced: newer instances of a plugin are registered, and the older one is let go of when it goes.
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

// survivor: the newer instance goes, the older one is registered again.
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

// wrongPlugin is a plugin that a handler cannot use.
type wrongPlugin struct {
	what  string // completes "a plugin that"
	start func(name string) *fakePlugin
	must  bool // RegisterPlugin has to refuse it, and cannot do so without looking
}

// wrongPlugins are all that can be wrong with a plugin.
func (s *session) wrongPlugins() []wrongPlugin {
	var all []wrongPlugin
	for _, b := range []behaviour{absent, hangsUp, failing} {
		start := func(name string) *fakePlugin { return s.instance(name, b) }
		all = append(all, wrongPlugin{what: b.String(), start: start})
	}
	for what, services := range s.config.WrongPlugins {
		start := func(name string) *fakePlugin { return s.start(name, wellBehaved, services) }
		all = append(all, wrongPlugin{what: "is wrong: " + what, start: start, must: true})
	}
	return all
}

// registerWrong has the handler refuse a plugin, or let go of it.
func (s *session) registerWrong(wrong wrongPlugin, name string) *fakePlugin {
	s.stage = "a plugin that " + wrong.what
	p := wrong.start(name)
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

// failedRegister: what fails leaves nothing behind, and the same name can be registered afterwards.
func failedRegister(s *session) {
	for _, wrong := range s.wrongPlugins() {
		p := s.registerWrong(wrong, s.name())
		s.clean(p)
		s.lives(s.instance(p.name, wellBehaved))
	}
}

// failedReRegister: after it the handler has no instance of that name, the one from before neither, which is registered again.
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

// pluginDies: plugins that are there no more are let go of all the same.
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

// noLockOverCall: while plugins hang, others are registered and deregistered.
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
	if err != nil {
		s.fail("while other plugins hang: %w", err)
	}
	if err := <-deregistered; err != nil {
		s.fail("of a plugin that hangs: %w", err)
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

// others walks plugins that behave well through their life.
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
