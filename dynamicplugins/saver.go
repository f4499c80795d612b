package dynamicplugins

import (
	"container/list"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/patchbay-dev/patchbay/internal/callback"
	"github.com/patchbay-dev/patchbay/plugin"
)

// saving is a change of one plugin to be saved: its instances, newest first, and its reservation, nil if that is unchanged.
type saving struct {
	key         plugin.Name
	plugins     []*PluginInfo
	reservation *plugin.Reservation
}

func (s saving) change() *PluginChange {
	plugins := make([]*PluginInfo, len(s.plugins))
	for i, p := range s.plugins {
		plugins[i] = toStored(p)
	}
	return &PluginChange{Type: s.key.Type, Name: s.key.Name, Plugins: plugins, Reservation: s.reservation}
}

// saver makes changes durable. Its functions may run at once for different plugins.
type saver struct {
	// one saves a change.
	one func(saving) error
	// all saves changes of different plugins. It returns nil if all are durable, and otherwise an error for each that is not, at its index.
	all func([]saving) []error
}

func newSaver(state StateStorage, loaded map[plugin.Name][]*PluginInfo) saver {
	if state == nil {
		return saver{func(saving) error { return nil }, func([]saving) []error { return nil }}
	}
	changes, ok := state.(ChangeStorage)
	if !ok {
		w := &wholeSaver{state: state, lists: make(map[plugin.Name]*list.List, len(loaded))}
		for k, plugins := range loaded {
			w.lists[k] = listOf(plugins)
		}
		return saver{func(s saving) error { return w.saveTogether([]saving{s}) }, w.save}
	}
	one := func(s saving) error {
		return callStorage(func() error { return changes.PutDynamicPluginChange(s.change()) })
	}
	if batches, ok := state.(BatchStorage); ok {
		return saver{one, func(all []saving) (errs []error) {
			changes := make([]*PluginChange, len(all))
			for i, s := range all {
				changes[i] = s.change()
			}
			err := callStorage(func() error {
				errs = batches.PutDynamicPluginChanges(changes)
				return nil
			})
			if err != nil {
				return slices.Repeat([]error{err}, len(all))
			}
			return errs
		}}
	}
	return saver{one, func(all []saving) []error {
		errs := make([]error, len(all))
		var saving sync.WaitGroup
		for i, s := range all {
			saving.Go(func() { errs[i] = one(s) })
		}
		saving.Wait()
		return errs
	}}
}

// callStorage calls the storage, which must return: if it does not, nothing is known to be durable.
func callStorage(put func() error) error {
	err := callback.Call(put)
	if failed, ok := errors.AsType[*callback.Error](err); ok {
		return fmt.Errorf("the state storage failed: %w", failed)
	}
	return err
}

// wholeSaver saves into a storage that takes nothing but whole states. While one state is being saved, the changes that arrive are
// gathered, and the next state has all of them.
type wholeSaver struct {
	state StateStorage

	saving sync.Mutex
	lists  map[plugin.Name]*list.List // as they are in the storage; guarded by saving

	mu   sync.Mutex
	next *group // the changes that wait for saving; nil if there are none
}

type group struct {
	lists map[plugin.Name]*list.List // nil: nothing is left of the plugin
	done  chan struct{}
	err   error // set before done is closed
}

func (w *wholeSaver) save(all []saving) []error {
	if err := w.saveTogether(all); err != nil {
		return slices.Repeat([]error{err}, len(all))
	}
	return nil
}

func (w *wholeSaver) saveTogether(all []saving) error {
	w.mu.Lock()
	g := w.next
	first := g == nil
	if first {
		g = &group{lists: make(map[plugin.Name]*list.List), done: make(chan struct{})}
		w.next = g
	}
	for _, s := range all {
		g.lists[s.key] = listOf(s.plugins)
	}
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
func (w *wholeSaver) put(changes map[plugin.Name]*list.List) error {
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
		if state.Plugins[k.Type] == nil {
			state.Plugins[k.Type] = make(map[string]*list.List)
		}
		state.Plugins[k.Type][k.Name] = l
	}
	if err := callStorage(func() error { return w.state.PutDynamicPluginRegistryState(state) }); err != nil {
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
