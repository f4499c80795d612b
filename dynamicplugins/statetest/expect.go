package statetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// expect checks that the storage holds want, and that it still does after it was reopened.
func (s *session) expect(want *dynamicplugins.RegistryState) {
	s.t.Helper()
	s.ok(diff(want, s.get()))
	s.reopen()
	if err := diff(want, s.get()); err != nil {
		s.t.Fatalf("after it was reopened: %v", err)
	}
}

func (s *session) get() *dynamicplugins.RegistryState {
	s.t.Helper()
	got, err := s.GetDynamicPluginRegistryState()
	s.ok(err)
	return got
}

type plugin struct{ ptype, name string }

// diff reports the first difference of two states. A plugin without instances is the same as none.
func diff(want, got *dynamicplugins.RegistryState) error {
	wanted, err := flatten(want)
	if err != nil {
		return err
	}
	gotten, err := flatten(got)
	if err != nil {
		return err
	}
	for p := range gotten {
		if wanted[p] == nil {
			return fmt.Errorf("plugin %q for type %q came back and should not be there", p.name, p.ptype)
		}
	}
	for p, instances := range wanted {
		if !slices.EqualFunc(instances, gotten[p], same) {
			return fmt.Errorf("plugin %q for type %q: put the instances %s, got back %s",
				p.name, p.ptype, describe(instances), describe(gotten[p]))
		}
	}
	return nil
}

func flatten(state *dynamicplugins.RegistryState) (map[plugin][]*dynamicplugins.PluginInfo, error) {
	plugins := make(map[plugin][]*dynamicplugins.PluginInfo)
	if state == nil {
		return plugins, nil
	}
	for ptype, names := range state.Plugins {
		for name, instances := range names {
			if instances == nil {
				continue
			}
			p := plugin{ptype, name}
			for e := instances.Front(); e != nil; e = e.Next() {
				info, ok := e.Value.(*dynamicplugins.PluginInfo)
				if !ok || info == nil {
					return nil, fmt.Errorf("plugin %q for type %q: an instance is a %T instead of a *PluginInfo", name, ptype, e.Value)
				}
				plugins[p] = append(plugins[p], info)
			}
		}
	}
	return plugins, nil
}

func same(a, b *dynamicplugins.PluginInfo) bool {
	return a.Type == b.Type && a.Name == b.Name && a.Version == b.Version && a.AllocID == b.AllocID &&
		(a.ConnectionInfo == nil) == (b.ConnectionInfo == nil) &&
		(a.ConnectionInfo == nil || *a.ConnectionInfo == *b.ConnectionInfo) &&
		maps.Equal(a.Options, b.Options)
}

func describe(instances []*dynamicplugins.PluginInfo) string {
	texts := make([]string, len(instances))
	for i, p := range instances {
		texts[i] = fmt.Sprintf("{AllocID:%q Version:%q ConnectionInfo:%+v Options:%q}", p.AllocID, p.Version, p.ConnectionInfo, p.Options)
	}
	return fmt.Sprintf("[%s]", strings.Join(texts, ", "))
}
