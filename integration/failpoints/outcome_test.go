//go:build linux

package failpoints

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/plugin"
)

func (s *scene) events() []*patchbayv1.Event {
	s.Helper()
	var all []*patchbayv1.Event
	for e, err := range s.client.Events(context.WithoutCancel(s.Context()), &patchbayv1.WatchEventsRequest{}) {
		if err != nil {
			s.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// said says whether something was said.
func (s *scene) said(n naming) bool {
	s.Helper()
	switch n.where {
	case inEvent:
		return slices.ContainsFunc(s.events(), func(e *patchbayv1.Event) bool {
			return e.Name != neighbour && strings.Contains(e.Kind+": "+e.Message, n.text)
		})
	case inCondition:
		return slices.ContainsFunc(s.list().Conditions, func(c *patchbayv1.Condition) bool {
			return c.Status != "ok" && strings.Contains(c.Name+": "+c.Message, n.text)
		})
	case inLog:
		return strings.Contains(s.log.String(), n.text)
	case inError:
		return s.err != nil && strings.Contains(s.err.Error(), n.text)
	}
	s.Fatalf("nothing is said in %q", n.where)
	return false
}

// hear waits until all is said that is to be, unless something else happens besides, of which something else may be said.
func (s *scene) hear(all []naming) {
	s.Helper()
	if s.settle() {
		return
	}
	for _, n := range all {
		switch n.where {
		case inError:
			if !s.said(n) {
				s.Errorf("the error is %v, want %q", s.err, n.text)
			}
			continue
		case toPlugin:
			select {
			case text := <-s.plugins[guest].Refused:
				if !strings.Contains(text, n.text) {
					s.Errorf("the plugin is told %q, want %q", text, n.text)
				}
			case <-time.After(patience):
				s.Errorf("the plugin is not told %q", n.text)
			}
			continue
		}
		s.await(fmt.Sprintf("the %s has %q", n.where, n.text), func() bool { return s.said(n) })
	}
}

// check checks that the plugins are registered, each once, that nothing is wrong any more, and that the neighbour noticed nothing.
func (s *scene) check() {
	s.Helper()
	if s.settle() {
		s.recover()
	}
	for _, launched := range s.setup.Launched {
		s.registered(launched.Name)
		for _, p := range s.list().Plugins {
			if p.Name == launched.Name && p.Source != string(plugin.SourceLaunched) {
				s.Errorf("%s was launched, and is listed as %s", p.Name, p.Source)
			}
		}
	}
	for name := range s.plugins {
		before, known := s.instances[name]
		if s.registered(name); known && s.instances[name] != before {
			s.Errorf("%s was instance %s and is %s", name, before, s.instances[name])
		}
	}
	for name := range s.instances {
		s.await(name+" answers", func() bool { return s.call(name) == nil })
	}
	s.await("nothing is degraded", func() bool {
		return !slices.ContainsFunc(s.list().Conditions, func(c *patchbayv1.Condition) bool { return c.Status != "ok" })
	})
	current := map[string]string{}
	for _, p := range s.list().Plugins {
		if p.State != "registered" || !p.Current || current[p.Name] != "" || p.LastError != "" {
			s.Errorf("a plugin is %+v", p)
		}
		current[p.Name] = p.Instance
	}
	for name, instance := range s.instances {
		if current[name] != instance {
			s.Errorf("%s was instance %s and is %q", name, instance, current[name])
		}
	}
	if len(current) != len(s.instances) {
		s.Errorf("the daemon has the plugins %v, want %v", current, s.instances)
	}
	for _, e := range s.events() {
		if s.other != nil && s.other.all {
			break
		}
		if e.Name == neighbour && e.Kind != "registered" && e.Kind != "restored" {
			s.Errorf("the neighbour has the event %+v", e)
		}
	}
}

// recover waits for what follows from the end of what happened besides.
func (s *scene) recover() {
	s.Helper()
	delete(s.instances, fellow)
	s.await("its configuration is that of before", func() bool { return s.tryReload() == nil })
	s.await("all that is listed is registered", func() bool {
		return !slices.ContainsFunc(s.list().Plugins, func(p *patchbayv1.Plugin) bool { return p.State != "registered" })
	})
}

// finish checks that the daemon is as it should be, and is so again after a restart, and that nothing is left of it and of the plugins.
func (s *scene) finish() {
	s.Helper()
	if s.runs {
		s.check()
		if err := s.stop(); err != nil {
			s.Errorf("the daemon ended with %v", err)
		}
	}
	s.start()
	s.check()
	for name := range s.plugins {
		s.leave(name, false)
		s.deregistered(name)
	}
	s.setup.Launched = nil
	s.reload()
	s.await("no plugin is left", func() bool { return len(s.list().Plugins) == 0 })
	if err := s.stop(); err != nil {
		s.Errorf("the daemon ended with %v", err)
	}
	state, err := boltstate.Open(s.path("state.db"))
	if err != nil {
		s.Fatal(err)
	}
	stored, err := state.GetDynamicPluginRegistryState()
	if err := errors.Join(err, state.Close()); err != nil || len(stored.Plugins) > 0 {
		s.Errorf("the state file has %v, %v", stored, err)
	}
	left := []string{}
	err = filepath.WalkDir(s.setup.Dir, func(path string, entry fs.DirEntry, err error) error {
		if rel := strings.TrimPrefix(path, s.setup.Dir+"/"); !entry.IsDir() && !slices.Contains([]string{"state.db", "state.db.events", "state.db.instance"}, rel) {
			left = append(left, rel)
		}
		return err
	})
	if err != nil || len(left) > 0 {
		s.Errorf("these files are left: %v, %v", left, err)
	}
	if err := s.ask("Leaks", None{}); err != nil {
		s.Error(err)
	}
}
