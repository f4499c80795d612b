package dynamicplugins

import (
	"container/list"
	"maps"
	"sync"
)

// saver makes the instances of one plugin durable, newest first, and whose its name is, unless kept is nil. Several may run at once for
// different plugins.
type saver func(k key, plugins []*PluginInfo, kept *KeptName) error

// newSaver returns the saver for a storage that holds the lists of loaded.
func newSaver(state StateStorage, loaded map[key][]*PluginInfo) saver {
	if state == nil {
		return func(key, []*PluginInfo, *KeptName) error { return nil }
	}
	if changes, ok := state.(ChangeStorage); ok {
		return func(k key, plugins []*PluginInfo, kept *KeptName) error {
			return changes.PutDynamicPluginChange(&PluginChange{Type: k.ptype, Name: k.name, Plugins: storedAll(plugins), Kept: kept})
		}
	}
	w := &wholeSaver{state: state, lists: make(map[key]*list.List, len(loaded))}
	for k, plugins := range loaded {
		w.lists[k] = listOf(plugins)
	}
	return w.save
}

// wholeSaver saves into a storage that takes nothing but whole states. While one state is being saved, the changes that arrive are
// gathered, and the next state has all of them.
type wholeSaver struct {
	state StateStorage

	saving sync.Mutex
	lists  map[key]*list.List // as they are in the storage; guarded by saving

	mu   sync.Mutex
	next *group // the changes that wait for saving; nil if there are none
}

// group is changes of different plugins that are saved together.
type group struct {
	lists map[key]*list.List // nil: nothing is left of the plugin
	done  chan struct{}
	err   error // set before done is closed
}

func (w *wholeSaver) save(k key, plugins []*PluginInfo, _ *KeptName) error {
	w.mu.Lock()
	g := w.next
	first := g == nil
	if first {
		g = &group{lists: make(map[key]*list.List), done: make(chan struct{})}
		w.next = g
	}
	g.lists[k] = listOf(plugins)
	w.mu.Unlock()

	if !first {
		<-g.done
		return g.err
	}
	w.saving.Lock()
	defer w.saving.Unlock()
	w.mu.Lock()
	w.next = nil
	w.mu.Unlock()
	g.err = w.put(g.lists)
	close(g.done)
	return g.err
}

// put saves the state with changes applied, and keeps them if that succeeds. The caller holds w.saving.
func (w *wholeSaver) put(changes map[key]*list.List) error {
	lists := maps.Clone(w.lists)
	for k, l := range changes {
		if l == nil {
			delete(lists, k)
		} else {
			lists[k] = l
		}
	}
	state := &RegistryState{Plugins: make(map[string]map[string]*list.List)}
	for k, l := range lists {
		if state.Plugins[k.ptype] == nil {
			state.Plugins[k.ptype] = make(map[string]*list.List)
		}
		state.Plugins[k.ptype][k.name] = l
	}
	if err := w.state.PutDynamicPluginRegistryState(state); err != nil {
		return err
	}
	w.lists = lists
	return nil
}

func listOf(plugins []*PluginInfo) *list.List {
	if len(plugins) == 0 {
		return nil
	}
	l := list.New()
	for _, p := range plugins {
		l.PushBack(toStored(p))
	}
	return l
}

func storedAll(plugins []*PluginInfo) []*PluginInfo {
	all := make([]*PluginInfo, len(plugins))
	for i, p := range plugins {
		all[i] = toStored(p)
	}
	return all
}
