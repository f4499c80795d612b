package handlertest

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
)

// contextEnds: a registration that is given up ends soon, and leaves nothing behind.
func contextEnds(s *session) error {
	if _, ok := s.PluginHandler.(cache.ContextRegistrar); !ok {
		return fmt.Errorf("%w: it has no RegisterPluginContext", errNotApplicable)
	}
	for _, b := range []behaviour{stuck, silent, absent, wellBehaved} {
		p := s.plugin(b)
		result, end := s.begin(p)
		if b != wellBehaved {
			// So that it is in the middle of it.
			_ = s.eventuallyWithin(100*time.Millisecond, func() bool { return p.accepted() > 0 })
		}
		end()
		err := s.await("RegisterPluginContext("+p.name+") of a plugin that "+b.String()+", after the end of its context", result)
		if broken(err) {
			return err
		}
		if err == nil {
			if err := s.deregister(p.name); err != nil {
				return err
			}
		}
		if err := s.clean(p); err != nil {
			return fmt.Errorf("after the end of the context of a registration, of a plugin that %s: %w", b, err)
		}
		good := s.instance(p.name, wellBehaved)
		if err := errors.Join(s.register(good), s.deregister(good.name)); err != nil {
			return err
		}
		if err := s.clean(good); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) eventuallyWithin(patience time.Duration, is func() bool) error {
	short := *s
	short.patience = patience
	return short.eventually(is)
}

// contextOfThePast: a registered plugin stays in use when the context of its registration ends.
func contextOfThePast(s *session) error {
	if _, ok := s.PluginHandler.(cache.ContextRegistrar); !ok {
		return fmt.Errorf("%w: it has no RegisterPluginContext", errNotApplicable)
	}
	p := s.plugin(wellBehaved)
	result, end := s.begin(p)
	if err := s.await("RegisterPluginContext("+p.name+")", result); err != nil {
		end()
		return err
	}
	if err := s.has(p); err != nil {
		end()
		return err
	}
	made := p.accepted()
	end()
	if err := s.keeps(p, made); err != nil {
		return fmt.Errorf("after the end of the context of a registration that had succeeded: %w", err)
	}
	if err := s.deregister(p.name); err != nil {
		return err
	}
	return s.clean(p)
}

// crash ends the handler without deregistering anything and makes it anew over the same state.
func (s *session) crash() (former cache.PluginHandler, err error) {
	former = s.PluginHandler
	if err := s.closeHandler(); err != nil {
		return nil, err
	}
	return former, s.open()
}

// forget has a handler that ended without Close, as only a process can, let go of what it has.
func (s *session) forget(former cache.PluginHandler, names ...string) error {
	if _, ok := former.(io.Closer); ok {
		return nil
	}
	ended := *s
	ended.PluginHandler = former
	var errs []error
	for _, name := range names {
		errs = append(errs, ended.deregister(name))
	}
	return errors.Join(errs...)
}

// crashAtRest: what was registered is registered again with the handler made anew, or never again.
func crashAtRest(s *session) error {
	again, elsewhere, never := s.plugin(wellBehaved), s.plugin(wellBehaved), s.plugin(wellBehaved)
	if err := errors.Join(s.register(again), s.register(elsewhere), s.register(never)); err != nil {
		return err
	}
	former, err := s.crash()
	if err != nil {
		return err
	}
	moved := s.instance(elsewhere.name, wellBehaved)
	if err := errors.Join(s.register(again), s.register(moved)); err != nil {
		return fmt.Errorf("a handler made anew over the same state: %w", err)
	}
	if err := errors.Join(s.deregister(again.name), s.deregister(moved.name), s.deregister(never.name)); err != nil {
		return err
	}
	if err := s.forget(former, again.name, elsewhere.name, never.name); err != nil {
		return err
	}
	return s.released(again, elsewhere, moved, never)
}

// crashInTheMiddle: the handler ends while it registers.
func crashInTheMiddle(s *session) error {
	for _, b := range []behaviour{stuck, silent} {
		p := s.plugin(b)
		result, end := s.begin(p)
		_ = s.eventuallyWithin(100*time.Millisecond, func() bool { return p.accepted() > 0 })
		end()
		p.stop()
		former, err := s.crash()
		if err != nil {
			return err
		}
		if err := s.await("RegisterPlugin("+p.name+"), when the handler ends", result); broken(err) {
			return err
		}
		good := s.instance(p.name, wellBehaved)
		if err := s.register(good); err != nil {
			return fmt.Errorf("a handler made anew over the same state, in the middle of RegisterPlugin: %w", err)
		}
		if err := errors.Join(s.deregister(good.name), s.forget(former, p.name)); err != nil {
			return err
		}
		if err := s.released(p, good); err != nil {
			return err
		}
	}
	return nil
}

// concurrentNames: each plugin has its own life.
func concurrentNames(s *session) error {
	const names, rounds = 16, 6
	plugins := make([][]*fakePlugin, names)
	for i := range plugins {
		name := s.name()
		for range 2 {
			plugins[i] = append(plugins[i], s.instance(name, wellBehaved))
		}
	}
	errs := make([]error, names)
	var running sync.WaitGroup
	for i := range plugins {
		a, b := plugins[i][0], plugins[i][1]
		running.Go(func() {
			for range rounds {
				if errs[i] = errors.Join(s.register(a), s.register(b), s.gone(a), s.has(b), s.deregister(b.name)); errs[i] != nil {
					return
				}
				if errs[i] = s.released(a, b); errs[i] != nil {
					return
				}
			}
		})
	}
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.clean()
}

// closed: Close lets go of everything, and calls that come later do no harm.
func closed(s *session) error {
	if _, ok := s.PluginHandler.(io.Closer); !ok {
		return fmt.Errorf("%w: it has no Close", errNotApplicable)
	}
	a, b := s.plugin(wellBehaved), s.plugin(wellBehaved)
	if err := errors.Join(s.register(a), s.register(b)); err != nil {
		return err
	}
	if err := s.closeHandler(); err != nil {
		return err
	}
	if err := errors.Join(s.disconnected(a), s.disconnected(b)); err != nil {
		return fmt.Errorf("after Close: %w", err)
	}
	// After a change of the configuration, plugins of the former handler may still be being deregistered.
	return errors.Join(s.deregister(a.name), s.gone(b), s.deregister(b.name))
}
