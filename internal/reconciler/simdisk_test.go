package reconciler_test

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

// simDisk keeps what the registry saves, over the lives of a host.
type simDisk struct {
	m     *model
	saved map[lane][]*dynamicplugins.PluginInfo
	names map[lane]plugin.Reservation
	// mode says how writes fail: "fail" each, "flaky" some. die: the host is killed at the next write, which is "kept" nevertheless or "lost".
	mode, die string
}

// store is the storage of one life of the host. It takes whole states, or changes too.
type (
	wholeStore struct {
		d *simDisk
		l *life
	}
	changeStore struct{ wholeStore }
)

func (s wholeStore) GetDynamicPluginRegistryState() (*dynamicplugins.RegistryState, error) {
	state := &dynamicplugins.RegistryState{Plugins: map[string]map[string]*list.List{}}
	for key, infos := range s.d.saved {
		if state.Plugins[key.ptype] == nil {
			state.Plugins[key.ptype] = map[string]*list.List{}
		}
		all := list.New()
		for _, info := range infos {
			all.PushBack(info)
		}
		state.Plugins[key.ptype][key.name] = all
	}
	state.Reservations = slices.Collect(maps.Values(s.d.names))
	return state, nil
}

func (s wholeStore) PutDynamicPluginRegistryState(state *dynamicplugins.RegistryState) error {
	return s.d.write(s.l, "everything", func() {
		clear(s.d.saved)
		for ptype, names := range state.Plugins {
			for name, all := range names {
				for e := all.Front(); e != nil; e = e.Next() {
					info, _ := e.Value.(*dynamicplugins.PluginInfo)
					s.d.saved[lane{ptype, name}] = append(s.d.saved[lane{ptype, name}], info)
				}
			}
		}
	})
}

func (s changeStore) PutDynamicPluginChange(change *dynamicplugins.PluginChange) error {
	return s.put([]*dynamicplugins.PluginChange{change})
}

func (s changeStore) PutDynamicPluginChanges(changes []*dynamicplugins.PluginChange) []error {
	if err := s.put(changes); err != nil {
		return slices.Repeat([]error{err}, len(changes))
	}
	return nil
}

func (s changeStore) put(changes []*dynamicplugins.PluginChange) error {
	var keys []string
	for _, change := range changes {
		keys = append(keys, change.Type+"/"+change.Name)
	}
	return s.d.write(s.l, strings.Join(keys, " "), func() {
		for _, change := range changes {
			key := lane{change.Type, change.Name}
			if s.d.saved[key] = change.Plugins; len(change.Plugins) == 0 {
				delete(s.d.saved, key)
			}
			s.d.keep(change.Reservation)
		}
	})
}

// write makes one write, unless it fails.
func (d *simDisk) write(l *life, what string, apply func()) error {
	d.m.did("write")
	switch {
	case l.dead:
		return errKilled
	case d.die != "":
		d.m.note("disk: the host dies in the write of %s, which is %s", what, d.die)
		if d.die == "kept" {
			apply()
		}
		d.die, l.dead = "", true
		return errKilled
	case d.mode == "fail", d.mode == "flaky" && d.m.sim.chance(2):
		d.m.note("disk: %s cannot be written", what)
		l.unlucky = true
		return errors.New("disk full")
	}
	d.m.note("disk: %s is written", what)
	apply()
	d.checkRemovals(l)
	return nil
}

// checkRemovals sees that what goes from a name goes from the disk in the same order: otherwise a restart finds the one that went first, and
// keeps the name for its user.
func (d *simDisk) checkRemovals(l *life) {
	for key, ids := range l.removals {
		on := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return d.has(key, id) == nil })
		if len(on) > 0 && on[0] != ids[len(ids)-len(on)] {
			d.m.complain("of %v, which went in this order, %v are still on the disk", ids, on)
		}
		l.removals[key] = on
	}
}

// has returns an instance as it is on the disk, or nil.
func (d *simDisk) has(key lane, id string) *dynamicplugins.PluginInfo {
	for _, info := range d.saved[key] {
		if info.AllocID == id {
			return info
		}
	}
	return nil
}

// instances are those on the disk that are no roles.
func (d *simDisk) instances() (ids []string) {
	for _, infos := range d.saved {
		for _, info := range infos {
			if info.Options["patchbay.dev/role-of"] == "" {
				ids = append(ids, info.AllocID)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// simRegistry is the real registry, watched.
type simRegistry struct {
	l    *life
	real reconciler.Registry
}

type simStaged struct {
	l    *life
	in   plugin.Instance
	real reconciler.Staged
}

// linger has the disk take its time.
func (l *life) linger() {
	if m := l.m; m.set.has("slowdisk") && !m.calm && m.sim.current != nil && m.sim.chance(2) {
		_ = l.pace.Sleep(context.Background(), time.Duration(m.sim.random.IntN(30))*time.Millisecond)
	}
}

func (r simRegistry) Stage(instances []plugin.Instance) []reconciler.Stage {
	m := r.l.m
	m.did("save")
	for _, in := range instances {
		m.staged(in)
	}
	if t := m.sim.current; t != nil {
		t.dials = 0 // what waits for the disk holds no slot
	}
	r.l.linger()
	stages := r.real.Stage(instances)
	if r.l.dead {
		return slices.Repeat([]reconciler.Stage{{Err: errKilled}}, len(instances))
	}
	for i, in := range instances {
		if stages[i].Staged != nil {
			stages[i].Staged = simStaged{r.l, in, stages[i].Staged}
		}
		if stages[i].Err == nil {
			r.l.instances[in.ID] = in
		}
	}
	r.l.linger()
	return stages
}

func (r simRegistry) Remove(ptype, name, id string) error {
	if r.l.dead {
		return errKilled
	}
	r.l.m.did("remove")
	r.l.m.removed(ptype, name, id)
	r.l.linger()
	return r.real.Remove(ptype, name, id)
}

func (r simRegistry) Confirm(ptype, name, id string) {
	r.l.m.note("registry: %s is confirmed", id)
	r.real.Confirm(ptype, name, id)
}

func (r simRegistry) Unreachable(ptype, name, id string, reason error) {
	r.l.m.note("registry: %s is hidden: %v", id, reason)
	r.real.Unreachable(ptype, name, id, reason)
}

func (s simStaged) Publish() {
	if s.l.dead {
		return
	}
	s.l.m.published(s.in)
	s.real.Publish()
}

func (s simStaged) Discard() error {
	if s.l.dead {
		return errKilled
	}
	s.l.m.did("discard")
	s.l.linger()
	return s.real.Discard()
}

// follow takes over the events of the registry, and sees that they meet its picture.
func (l *life) follow() {
	for {
		select {
		case e := <-l.events:
			l.m.note("registry: %s %s/%s %s", e.EventType, e.Info.Type, e.Info.Name, e.Info.AllocID)
			key := instanceKey{lane{e.Info.Type, e.Info.Name}, e.Info.AllocID}
			_, known := l.mirror[key]
			switch e.EventType {
			case dynamicplugins.EventTypeDeregistered:
				if delete(l.mirror, key); !known {
					l.m.complain("an event says that %v is deregistered, which was not there", key)
				}
			case dynamicplugins.EventTypeRegistered, dynamicplugins.EventTypeUpdated:
				if known != (e.EventType == dynamicplugins.EventTypeUpdated) {
					l.m.complain("an event says that %v is %s; that it was there is %t", key, e.EventType, known)
				}
				l.mirror[key] = e.Info
			default:
				l.m.complain("the registry's subscriber is told to %s", e.EventType)
			}
			continue
		default:
		}
		return
	}
}

// instanceKey names an instance in the registry.
type instanceKey struct {
	lane
	id string
}

// checkMirror sees that what the events tell is what the registry has.
func (l *life) checkMirror() {
	has := map[instanceKey]*dynamicplugins.PluginInfo{}
	for _, in := range l.store.Instances("", "") {
		has[instanceKey{lane{in.Info.Type, in.Info.Name}, in.Info.AllocID}] = in.Info
	}
	if !maps.EqualFunc(has, l.mirror, func(a, b *dynamicplugins.PluginInfo) bool {
		return *a.ConnectionInfo == *b.ConnectionInfo && maps.Equal(a.Options, b.Options)
	}) {
		l.m.complain("the registry has %s, and its events tell of %s", keysOf(has), keysOf(l.mirror))
	}
}

func keysOf(all map[instanceKey]*dynamicplugins.PluginInfo) string {
	var keys []string
	for key := range all {
		keys = append(keys, fmt.Sprint(key))
	}
	slices.Sort(keys)
	return fmt.Sprint(keys)
}
