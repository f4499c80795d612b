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

// saving is a change of one plugin to be saved: all its instances, newest first, and its reservation, nil if that is unchanged.
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

// saver saves changes. Its functions may be called concurrently for different plugins.
type saver struct {
	// one saves a change.
	one func(saving) error
	// all saves changes of different plugins. It returns nil if all are saved, and otherwise an error for each that is not, at its index.
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

// callStorage calls the storage. Its panic, or its runtime.Goexit, is an error.
func callStorage(put func() error) error {
	err := callback.Call(put)
	if failed, ok := errors.AsType[*callback.Error](err); ok {
		return fmt.Errorf("the state storage failed: %w", failed)
	}
	return err
}

// wholeSaver saves into a storage of whole states. The changes that arrive while one state is being saved are in the next one.
type wholeSaver struct {
	state StateStorage

	saving sync.Mutex
	lists  map[plugin.Name]*list.List // as stored; guarded by saving

	mu   sync.Mutex
	next *group // the changes that wait to be saved; nil if there are none
}

type group struct {
	lists map[plugin.Name]*list.List // nil for a plugin without instances
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

// load fills a new registry with the stored instances, in their order, as restored ones.
func (r *Store) load(storage StateStorage) error {
	loaded, kept, err := stored(storage)
	if err != nil {
		return &failure{text: "cannot load the plugin registry's state", sentinel: ErrNotLoaded, cause: err}
	}
	r.save, r.reserved.restored = newSaver(storage, loaded), kept
	for k, plugins := range loaded {
		l := &pluginInstances{key: k, saved: plugins}
		for i, info := range plugins {
			in := newInstance(r.pool, info)
			in.restored, in.rank = true, uint64(len(plugins)-i)
			l.slots = append(l.slots, slot{shown: in, rank: in.rank})
		}
		r.perPlugin.Store(k, l)
		r.show(l)
	}
	return nil
}

// stored reads and checks the state of a storage: it returns an error instead of ignoring an invalid instance.
func stored(storage StateStorage) (map[plugin.Name][]*PluginInfo, []plugin.Reservation, error) {
	loaded := make(map[plugin.Name][]*PluginInfo)
	if storage == nil {
		return loaded, nil, nil
	}
	state, err := storage.GetDynamicPluginRegistryState()
	if err != nil || state == nil {
		return loaded, nil, err
	}
	for ptype, names := range state.Plugins {
		for name, instances := range names {
			k := plugin.Name{Type: ptype, Name: name}
			plugins, err := storedPlugins(k, instances)
			if err != nil {
				return nil, nil, fmt.Errorf("plugin %q for type %q: %w", name, ptype, err)
			}
			if len(plugins) > 0 {
				loaded[k] = plugins
			}
		}
	}
	return loaded, state.Reservations, nil
}

func storedPlugins(k plugin.Name, instances *list.List) ([]*PluginInfo, error) {
	if instances == nil {
		return nil, nil
	}
	var plugins []*PluginInfo
	known := make(map[string]bool, instances.Len())
	for e := instances.Front(); e != nil; e = e.Next() {
		info, ok := e.Value.(*PluginInfo)
		if !ok {
			return nil, fmt.Errorf("an instance is stored as %T instead of *PluginInfo", e.Value)
		}
		if err := info.check(); err != nil {
			return nil, err
		}
		if info.Type != k.Type || info.Name != k.Name {
			return nil, fmt.Errorf("it has an instance of plugin %q for type %q", info.Name, info.Type)
		}
		if known[info.AllocID] {
			return nil, fmt.Errorf("it has two instances %q", info.AllocID)
		}
		known[info.AllocID] = true
		plugins = append(plugins, fromStored(info))
	}
	return plugins, nil
}

// reservations are saved together with the plugins of their names, so that a crash loses both or neither.
type reservations struct {
	restored []plugin.Reservation
	pending  sync.Map // plugin.Name → *plugin.Reservation that is not saved
}

// Reservations implements [keeper.Keeper].
func (r storeKeeper) Reservations() []plugin.Reservation { return r.reserved.restored }

// Reserve implements [keeper.Keeper].
func (r storeKeeper) Reserve(reservation plugin.Reservation) {
	r.reserved.pending.Store(reservation.Plugin, &reservation)
}

// SaveReservation implements [keeper.Keeper].
func (r storeKeeper) SaveReservation(name plugin.Name) error {
	k, err := named(name.Type, name.Name, "save the name of")
	if err != nil {
		return err
	}
	return r.change(k, func(l *pluginInstances) error {
		if r.reserved.unsaved(l.key) == nil {
			return nil
		}
		return r.put(l, l.saved)
	})
}

// unsaved returns the reservation of a name that is not saved, or nil.
func (r *reservations) unsaved(name plugin.Name) *plugin.Reservation {
	pending, _ := r.pending.Load(name)
	reservation, _ := pending.(*plugin.Reservation)
	return reservation
}

// saved removes a pending reservation that was saved, unless a newer one has replaced it; nil has no effect.
func (r *reservations) saved(reservation *plugin.Reservation) {
	if reservation != nil {
		r.pending.CompareAndDelete(reservation.Plugin, reservation)
	}
}
