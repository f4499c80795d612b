package handlertest

import (
	"errors"
	"fmt"
	"time"
)

type testCase struct {
	name string
	run  func(s *session) error
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

// misbehaviours are what a plugin may do that is not well-behaved, and that shows soon.
var misbehaviours = []behaviour{absent, hangsUp, failing}

// validate: what is wrong is refused, what is right is not, and nothing is remembered.
func validate(s *session) error {
	p := s.plugin(wellBehaved)
	for range 3 {
		if err := s.validate(p.name, p.socket, s.config.Versions); err != nil {
			return fmt.Errorf("ValidatePlugin of plugin %s, which is valid: %w", p.name, err)
		}
	}
	for _, versions := range s.config.WrongVersions {
		err := s.validate(p.name, p.socket, versions)
		if broken(err) {
			return err
		}
		if err == nil {
			return fmt.Errorf("ValidatePlugin accepts the versions %q, which are wrong", versions)
		}
	}
	for _, name := range s.config.WrongNames {
		err := s.validate(name, p.socket, s.config.Versions)
		if broken(err) {
			return err
		}
		if err == nil {
			return fmt.Errorf("ValidatePlugin accepts the name %q, which is wrong", name)
		}
	}
	if err := s.clean(p); err != nil {
		return fmt.Errorf("after ValidatePlugin alone: %w", err)
	}
	return nil
}

// repeated: the same plugin is registered again and again, and deregistered twice.
func repeated(s *session) error {
	const times = 16
	p := s.plugin(wellBehaved)
	for range times {
		if err := s.register(p); err != nil {
			return err
		}
	}
	if err := s.eventually(func() bool { return p.open() < times }); err != nil {
		return fmt.Errorf("registered %d times at the same endpoint, %d connections: %w", times, p.open(), err)
	}
	for range 2 {
		if err := s.deregister(p.name); err != nil {
			return err
		}
		if err := s.released(p); err != nil {
			return fmt.Errorf("after DeRegisterPlugin: %w", err)
		}
	}
	if err := s.register(p); err != nil {
		return fmt.Errorf("after DeRegisterPlugin: %w", err)
	}
	if err := s.deregister(p.name); err != nil {
		return err
	}
	return s.clean(p)
}

// unknown: calls for a plugin that the handler does not have do nothing, to others neither.
func unknown(s *session) error {
	other, never := s.plugin(wellBehaved), s.plugin(wellBehaved)
	if err := s.register(other); err != nil {
		return err
	}
	made := other.accepted()
	if err := errors.Join(s.deregister(never.name), s.gone(never), s.gone(s.instance(other.name, absent))); err != nil {
		return err
	}
	if err := s.keeps(other, made); err != nil {
		return fmt.Errorf("after calls for an unknown plugin and an unknown endpoint: %w", err)
	}
	if err := s.deregister(other.name); err != nil {
		return err
	}
	return s.clean(other, never)
}

// keeps makes sure that the handler still has a plugin, on the connections that were made until then.
func (s *session) keeps(p *fakePlugin, made int64) error {
	if s.config.HoldsConnection {
		// What the handler let go of shows when the plugin has noticed.
		<-time.After(50 * time.Millisecond)
		if p.open() == 0 || p.accepted() != made {
			return fmt.Errorf("the connection to plugin %s was let go of", p.name)
		}
	}
	return s.has(p)
}

// replaced: newer instances of a plugin are registered, and the older one is let go of when it goes.
func replaced(s *session) error {
	current := s.plugin(wellBehaved)
	if err := s.register(current); err != nil {
		return err
	}
	all := []*fakePlugin{current}
	for range 3 {
		next := s.instance(current.name, wellBehaved)
		all = append(all, next)
		if err := s.register(next); err != nil {
			return err
		}
		made := next.accepted()
		if err := s.gone(current); err != nil {
			return err
		}
		if err := s.disconnected(current); err != nil {
			return fmt.Errorf("a newer instance is registered, and the older is gone: %w", err)
		}
		if err := s.keeps(next, made); err != nil {
			return fmt.Errorf("the older instance is gone: %w", err)
		}
		current = next
	}
	if err := s.deregister(current.name); err != nil {
		return err
	}
	if err := s.gone(all[0]); err != nil {
		return err
	}
	return s.clean(all...)
}

// survivor: the newer instance goes, the older one is registered again.
func survivor(s *session) error {
	older := s.plugin(wellBehaved)
	newer := s.instance(older.name, wellBehaved)
	for range 3 {
		if err := errors.Join(s.register(older), s.register(newer)); err != nil {
			return err
		}
		if err := s.deregister(newer.name); err != nil {
			return err
		}
		if err := s.released(older, newer); err != nil {
			return fmt.Errorf("after DeRegisterPlugin none of the endpoints counts: %w", err)
		}
	}
	if err := s.register(older); err != nil {
		return err
	}
	if err := s.deregister(older.name); err != nil {
		return err
	}
	return s.clean(older, newer)
}

// failedRegister: what fails leaves nothing behind, and the same name can be registered afterwards.
func failedRegister(s *session) error {
	for wrong, services := range s.wrongPlugins() {
		p := s.wrong(s.name(), wrong, services)
		err := s.try(p)
		if broken(err) {
			return fmt.Errorf("a plugin that %s: %w", wrong, err)
		}
		if err == nil && services != nil {
			return fmt.Errorf("RegisterPlugin accepts a plugin that is wrong: %s", wrong)
		}
		if err == nil {
			// The handler did not have to look. As it has the plugin now, it has to be told.
			if err := s.deregister(p.name); err != nil {
				return err
			}
		}
		if leftover := s.clean(p); leftover != nil {
			return fmt.Errorf("after RegisterPlugin of a plugin that %s, which %s: %w", wrong, outcome(err), leftover)
		}
		good := s.instance(p.name, wellBehaved)
		if err := s.register(good); err != nil {
			return fmt.Errorf("after RegisterPlugin of a plugin of the same name that %s: %w", wrong, err)
		}
		if err := s.deregister(good.name); err != nil {
			return err
		}
		if err := s.clean(good); err != nil {
			return err
		}
	}
	return nil
}

// outcome says how a registration ended.
func outcome(err error) string {
	if err == nil {
		return "succeeded"
	}
	return "failed (" + err.Error() + ")"
}

// wrongPlugins are all that can be wrong with a plugin. Those of the suite's own have no services.
func (s *session) wrongPlugins() map[string]Services {
	all := map[string]Services{}
	for _, b := range misbehaviours {
		all[b.String()] = nil
	}
	for wrong, services := range s.config.WrongPlugins {
		all["is wrong: "+wrong] = services
	}
	return all
}

// wrong starts one of the wrongPlugins.
func (s *session) wrong(name, wrong string, services Services) *fakePlugin {
	if services != nil {
		return s.start(name, wellBehaved, services)
	}
	for _, b := range misbehaviours {
		if b.String() == wrong {
			return s.instance(name, b)
		}
	}
	return s.instance(name, absent)
}

// failedReRegister: after it the handler has no instance of that name, the one from before neither, which is registered again.
func failedReRegister(s *session) error {
	for wrong, services := range s.wrongPlugins() {
		older := s.plugin(wellBehaved)
		if err := s.register(older); err != nil {
			return err
		}
		newer := s.wrong(older.name, wrong, services)
		err := s.try(newer)
		if broken(err) {
			return fmt.Errorf("a plugin that %s: %w", wrong, err)
		}
		if err == nil {
			if err := s.deregister(newer.name); err != nil {
				return err
			}
		}
		if leftover := s.released(older, newer); leftover != nil {
			return fmt.Errorf("after re-registration of a plugin that %s, which %s: %w", wrong, outcome(err), leftover)
		}
		if err := s.register(older); err != nil {
			return fmt.Errorf("after the failed re-registration of a plugin that %s, the older instance again: %w", wrong, err)
		}
		if err := s.deregister(older.name); err != nil {
			return err
		}
		if err := s.clean(older, newer); err != nil {
			return err
		}
	}
	return nil
}

// pluginDies: plugins that are there no more are let go of all the same.
func pluginDies(s *session) error {
	older := s.plugin(wellBehaved)
	if err := s.register(older); err != nil {
		return err
	}
	older.stop()
	newer := s.instance(older.name, wellBehaved)
	if err := s.register(newer); err != nil {
		return err
	}
	if err := s.gone(older); err != nil {
		return err
	}
	if err := s.has(newer); err != nil {
		return err
	}
	newer.stop()
	if err := s.deregister(newer.name); err != nil {
		return err
	}
	return s.clean(older, newer)
}

// noLockOverCall: while plugins hang, others are registered and deregistered.
func noLockOverCall(s *session) error {
	turned := s.plugin(wellBehaved) // hangs later
	if err := s.register(turned); err != nil {
		return err
	}
	hanging := []*fakePlugin{s.plugin(stuck), s.plugin(silent)}
	var ends []func()
	var results []<-chan error
	for _, p := range hanging {
		result, end := s.begin(p)
		results, ends = append(results, result), append(ends, end)
	}
	turned.stuck.Store(true)
	deregistered := make(chan error, 1)
	go func() { deregistered <- s.deregister(turned.name) }()

	err := s.others()
	for _, end := range ends {
		end()
	}
	if err != nil {
		return fmt.Errorf("while other plugins hang: %w", err)
	}
	if err := <-deregistered; err != nil {
		return fmt.Errorf("of a plugin that hangs: %w", err)
	}
	for i, p := range hanging {
		p.stop()
		err := s.await("RegisterPlugin("+p.name+") of a plugin that hung and has ended", results[i])
		if broken(err) {
			return err
		}
		if err == nil {
			if err := s.deregister(p.name); err != nil {
				return err
			}
		}
	}
	return s.clean(append(hanging, turned)...)
}

// others walks plugins that behave well through their life.
func (s *session) others() error {
	for range 3 {
		p := s.plugin(wellBehaved)
		if err := s.register(p); err != nil {
			return err
		}
		next := s.instance(p.name, wellBehaved)
		if err := s.register(next); err != nil {
			return err
		}
		if err := errors.Join(s.gone(p), s.deregister(p.name)); err != nil {
			return err
		}
		if err := s.released(p, next); err != nil {
			return err
		}
	}
	return nil
}
