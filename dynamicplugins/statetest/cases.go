package statetest

import (
	"container/list"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

var cases = map[string]func(s *session){
	"NewStorageIsEmpty": func(s *session) { s.expect(nil) },
	"Populated":         func(s *session) { s.put(fill()) },
	"OddBytes":          oddBytes,
	"Replaced": func(s *session) {
		s.put(fill(), stateOf(instance("csi-node", "a", "1"), instance("csi-node", "a", "4"), instance("new", "c", "5")))
	},
	"Emptied":           func(s *session) { s.put(fill(), stateOf()) },
	"NilState":          func(s *session) { s.put(fill(), nil) },
	"ConcurrentStates":  concurrentStates,
	"Changes":           changes,
	"ChangesAfterState": changesAfterState,
	"ConcurrentChanges": concurrentChanges,
}

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

// put stores one state after the other and checks that each is there.
func (s *session) put(states ...*dynamicplugins.RegistryState) {
	s.t.Helper()
	for _, state := range states {
		s.ok(s.PutDynamicPluginRegistryState(state))
		s.expect(state)
	}
}

// atOnce calls write concurrently for each writer.
func (s *session) atOnce(writers int, write func(writer int) error) {
	s.t.Helper()
	errs := make([]error, writers)
	var running sync.WaitGroup
	for i := range writers {
		running.Go(func() { errs[i] = write(i) })
	}
	running.Wait()
	s.ok(errors.Join(errs...))
}

// oddBytes: what comes from plugins is bytes, and so are paths.
func oddBytes(s *session) {
	odd := "\x00\xff\xfe /\\\"'\n\r\t☃\u2028\xed\xa0\x80" + strings.Repeat("x", 5000)
	p := instance("type"+odd, "name"+odd, "alloc"+odd)
	p.Options = map[string]string{odd: odd, "": odd, "k": ""}
	bare := &dynamicplugins.PluginInfo{Type: "t", Name: "n", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{}}
	s.put(stateOf(p, bare))
}

// concurrentStates: whichever state is put last, it is a whole one.
func concurrentStates(s *session) {
	states := make([]*dynamicplugins.RegistryState, 8)
	for i := range states {
		states[i] = stateOf(instance("t", "a", fmt.Sprint(i)), instance("t", "b", fmt.Sprint(i)), instance("u", fmt.Sprint(i), "1"))
	}
	s.atOnce(len(states), func(i int) error { return s.PutDynamicPluginRegistryState(states[i]) })
	got := s.get()
	last := slices.IndexFunc(states, func(state *dynamicplugins.RegistryState) bool { return diff(state, got) == nil })
	if last < 0 {
		s.t.Fatal("of several states put at once, none came back whole")
	}
	s.expect(states[last])
}

// changeStorage returns the storage for changes of single plugins. It skips the test if the storage does not support them.
func (s *session) changeStorage() dynamicplugins.ChangeStorage {
	changes, ok := s.StateStorage.(dynamicplugins.ChangeStorage)
	if !ok {
		s.t.Skip("the storage does not implement dynamicplugins.ChangeStorage")
	}
	return changes
}

func change(ptype, name string, plugins ...*dynamicplugins.PluginInfo) *dynamicplugins.PluginChange {
	return &dynamicplugins.PluginChange{Type: ptype, Name: name, Plugins: plugins}
}

func changes(s *session) {
	a1, a2, b := instance("t", "a", "1"), instance("t", "a", "2"), instance("t", "b", "1")
	for _, step := range []struct {
		change *dynamicplugins.PluginChange
		want   *dynamicplugins.RegistryState
	}{
		{change("t", "a", a1), stateOf(a1)},
		{change("t", "a", a2, a1), stateOf(a2, a1)},
		{change("t", "b", b), stateOf(a2, a1, b)},
		{change("t", "a", a1), stateOf(a1, b)},
		{change("t", "c"), stateOf(a1, b)},
		{change("t", "a"), stateOf(b)},
		{change("t", "b"), stateOf()},
	} {
		s.ok(s.changeStorage().PutDynamicPluginChange(step.change))
		s.expect(step.want)
	}
}

// changesAfterState: both ways of storing are about the same state.
func changesAfterState(s *session) {
	s.put(fill())
	s.ok(s.changeStorage().PutDynamicPluginChange(change("csi-node", "a")))
	want := fill()
	delete(want.Plugins["csi-node"], "a")
	s.expect(want)
	s.put(stateOf(instance("x", "y", "z")))
}

// concurrentChanges: changes of different plugins do not get into each other's way.
func concurrentChanges(s *session) {
	const writers, rounds = 16, 10
	storage := s.changeStorage()
	var want []*dynamicplugins.PluginInfo
	name := func(writer int) string { return fmt.Sprint("plugin ", writer) }
	for i := 0; i < writers; i += 2 {
		want = append(want, instance("t", name(i), fmt.Sprint(rounds-1)))
	}
	s.atOnce(writers, func(i int) error {
		for round := range rounds {
			if err := storage.PutDynamicPluginChange(change("t", name(i), instance("t", name(i), fmt.Sprint(round)))); err != nil {
				return err
			}
		}
		if i%2 == 0 {
			return nil
		}
		return storage.PutDynamicPluginChange(change("t", name(i)))
	})
	s.expect(stateOf(want...))
}
