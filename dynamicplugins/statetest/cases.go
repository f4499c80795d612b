package statetest

import (
	"container/list"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

type testCase struct {
	name string
	run  func(s *session) error
}

var cases = []testCase{
	{"NewStorageIsEmpty", func(s *session) error { return s.expect(nil) }},
	{"Populated", func(s *session) error { return s.put(fill()) }},
	{"OddBytes", oddBytes},
	{"Replaced", func(s *session) error {
		return s.put(fill(), stateOf(instance("csi-node", "a", "1"), instance("csi-node", "a", "4"), instance("new", "c", "5")))
	}},
	{"Emptied", func(s *session) error { return s.put(fill(), stateOf()) }},
	{"NilState", func(s *session) error { return s.put(fill(), nil) }},
	{"ConcurrentStates", concurrentStates},
	{"Changes", changes},
	{"ChangesAfterState", changesAfterState},
	{"ConcurrentChanges", concurrentChanges},
}

var errNotApplicable = errors.New("the storage does not implement dynamicplugins.ChangeStorage")

// instance makes an instance in which every field is set and says which instance it is.
func instance(ptype, name, allocID string) *dynamicplugins.PluginInfo {
	return &dynamicplugins.PluginInfo{
		Type: ptype, Name: name, AllocID: allocID,
		Version:        "version of " + allocID,
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/run/" + allocID + ".sock"},
		Options:        map[string]string{"alloc": allocID, "empty": ""},
	}
}

// fill is a state of several types and names whose instances are in no natural order.
func fill() *dynamicplugins.RegistryState {
	return stateOf(
		instance("csi-node", "a", "2"), instance("csi-node", "a", "10"), instance("csi-node", "a", "1"),
		instance("csi-node", "b", "7"),
		instance("csi-controller", "a", "3"),
		instance("DevicePlugin", "example.com/resource", ""),
	)
}

func stateOf(plugins ...*dynamicplugins.PluginInfo) *dynamicplugins.RegistryState {
	state := &dynamicplugins.RegistryState{Plugins: make(map[string]map[string]*list.List)}
	for _, p := range plugins {
		if state.Plugins[p.Type] == nil {
			state.Plugins[p.Type] = make(map[string]*list.List)
		}
		if state.Plugins[p.Type][p.Name] == nil {
			state.Plugins[p.Type][p.Name] = list.New()
		}
		state.Plugins[p.Type][p.Name].PushBack(p)
	}
	return state
}

// put stores one state after the other and checks that each is there, and still there in a storage opened anew.
func (s *session) put(states ...*dynamicplugins.RegistryState) error {
	for _, state := range states {
		if err := s.PutDynamicPluginRegistryState(state); err != nil {
			return err
		}
		if err := s.expectKept(state); err != nil {
			return err
		}
	}
	return nil
}

func atOnce(writers int, write func(writer int) error) error {
	errs := make([]error, writers)
	var running sync.WaitGroup
	for i := range writers {
		running.Go(func() { errs[i] = write(i) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// oddBytes: what comes from plugins is bytes, and so are paths.
func oddBytes(s *session) error {
	odd := "\x00\xff\xfe /\\\"'\n\r\t☃\u2028\xed\xa0\x80" + strings.Repeat("x", 5000)
	p := instance("type"+odd, "name"+odd, "alloc"+odd)
	p.Options = map[string]string{odd: odd, "": odd, "k": ""}
	bare := &dynamicplugins.PluginInfo{Type: "t", Name: "n", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{}}
	return s.put(stateOf(p, bare))
}

// concurrentStates: whichever state is put last, it is a whole one.
func concurrentStates(s *session) error {
	states := make([]*dynamicplugins.RegistryState, 8)
	for i := range states {
		states[i] = stateOf(instance("t", "a", fmt.Sprint(i)), instance("t", "b", fmt.Sprint(i)), instance("u", fmt.Sprint(i), "1"))
	}
	if err := atOnce(len(states), func(i int) error { return s.PutDynamicPluginRegistryState(states[i]) }); err != nil {
		return err
	}
	got, err := s.GetDynamicPluginRegistryState()
	if err != nil {
		return err
	}
	for _, state := range states {
		if diff(state, got) == nil {
			return s.expectKept(state)
		}
	}
	return errors.New("of several states put at once, none came back whole")
}

func (s *session) change(ptype, name string, plugins ...*dynamicplugins.PluginInfo) error {
	changes, ok := s.StateStorage.(dynamicplugins.ChangeStorage)
	if !ok {
		return errNotApplicable
	}
	return changes.PutDynamicPluginChange(&dynamicplugins.PluginChange{Type: ptype, Name: name, Plugins: plugins})
}

func changes(s *session) error {
	a1, a2, b := instance("t", "a", "1"), instance("t", "a", "2"), instance("t", "b", "1")
	steps := []struct {
		name    string
		plugins []*dynamicplugins.PluginInfo
		want    *dynamicplugins.RegistryState
	}{
		{"a", []*dynamicplugins.PluginInfo{a1}, stateOf(a1)},
		{"a", []*dynamicplugins.PluginInfo{a2, a1}, stateOf(a2, a1)},
		{"b", []*dynamicplugins.PluginInfo{b}, stateOf(a2, a1, b)},
		{"a", []*dynamicplugins.PluginInfo{a1}, stateOf(a1, b)},
		{"c", nil, stateOf(a1, b)},
		{"a", nil, stateOf(b)},
		{"b", nil, stateOf()},
	}
	for i, step := range steps {
		if err := s.change("t", step.name, step.plugins...); err != nil {
			return err
		}
		if err := s.expectKept(step.want); err != nil {
			return fmt.Errorf("after change %d: %w", i+1, err)
		}
	}
	return nil
}

// changesAfterState: both ways of storing are about the same state.
func changesAfterState(s *session) error {
	if err := s.put(fill()); err != nil {
		return err
	}
	if err := s.change("csi-node", "a"); err != nil {
		return err
	}
	want := fill()
	delete(want.Plugins["csi-node"], "a")
	if err := s.expectKept(want); err != nil {
		return err
	}
	return s.put(stateOf(instance("x", "y", "z")))
}

// concurrentChanges: changes of different plugins do not get into each other's way.
func concurrentChanges(s *session) error {
	const writers, rounds = 16, 10
	var want []*dynamicplugins.PluginInfo
	name := func(writer int) string { return fmt.Sprint("plugin ", writer) }
	for i := 0; i < writers; i += 2 {
		want = append(want, instance("t", name(i), fmt.Sprint(rounds-1)))
	}
	err := atOnce(writers, func(i int) error {
		for round := range rounds {
			if err := s.change("t", name(i), instance("t", name(i), fmt.Sprint(round))); err != nil {
				return err
			}
		}
		if i%2 == 0 {
			return nil
		}
		return s.change("t", name(i))
	})
	if err != nil {
		return err
	}
	return s.expectKept(stateOf(want...))
}
