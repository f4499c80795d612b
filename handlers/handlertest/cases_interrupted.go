package handlertest

import (
	"errors"
	"io"
	"sync"

	"github.com/patchbay-dev/patchbay/cache"
)

func (s *session) needContext() {
	if _, ok := s.PluginHandler.(cache.ContextRegistrar); !ok {
		s.fail("%w: it has no RegisterPluginContext", errNotApplicable)
	}
}

// contextEnds: a registration that is given up ends soon, and leaves nothing behind.
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

// contextOfThePast: a registered plugin stays in use when the context of its registration ends.
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

// crash ends the handler without deregistering anything and makes it anew over the same state.
func (s *session) crash() (former cache.PluginHandler) {
	former = s.PluginHandler
	s.closeHandler()
	s.open()
	s.stage = "a handler made anew over the same state"
	return former
}

// forget has a handler that ended without Close, as only a process can, let go of what it has.
func (s *session) forget(former cache.PluginHandler, names ...string) {
	if _, ok := former.(io.Closer); !ok {
		s.deregisterFrom(former, names...)
	}
}

// crashAtRest: what was registered is registered again with the handler made anew, or never again.
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

// crashInTheMiddle: the handler ends while it registers.
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

// concurrentNames: each plugin has its own life.
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

// closed: Close lets go of everything, and calls that come later do no harm.
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
