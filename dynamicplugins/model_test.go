package dynamicplugins_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
)

var errBroken = errors.New("disk on fire")

// breakable is a storage whose changes can be made to fail.
type breakable struct {
	*boltstate.Store
	fail error
}

func (b *breakable) setFail(err error) { b.fail = err }

func (b *breakable) PutDynamicPluginChange(change *dynamicplugins.PluginChange) error {
	if b.fail != nil {
		return b.fail
	}
	return b.Store.PutDynamicPluginChange(change)
}

func (b *breakable) PutDynamicPluginChanges(changes []*dynamicplugins.PluginChange) []error {
	if b.fail != nil {
		return slices.Repeat([]error{b.fail}, len(changes))
	}
	return b.Store.PutDynamicPluginChanges(changes)
}

type modelStorage interface {
	dynamicplugins.StateStorage
	setFail(err error)
}

// TestModel compares the registry with a plain model of it, over any sequence of changes, failing saves and restarts.
func TestModel(t *testing.T) {
	for name, storage := range map[string]func(*testing.T) (modelStorage, func()){
		"WholeStates": func(*testing.T) (modelStorage, func()) { return &memory{}, func() {} },
		"Changes":     func(*testing.T) (modelStorage, func()) { return &changing{}, func() {} },
		"Bolt": func(t *testing.T) (modelStorage, func()) {
			store, err := boltstate.Open(filepath.Join(t.TempDir(), "state.db"))
			check(t, err)
			return &breakable{Store: store}, func() { _ = store.Close() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				store, done := storage(t)
				defer done()
				m := &model{storage: store, plugins: make(map[string][]*modelInstance), disk: make(map[string][]string)}
				m.open(rt)
				defer func() { m.registry.Shutdown() }()
				rt.Repeat(map[string]func(*rapid.T){
					"":            m.compare,
					"register":    m.register,
					"stage":       m.stage,
					"publish":     m.publish,
					"discard":     m.discard,
					"deregister":  m.deregister,
					"confirm":     m.confirm,
					"unreachable": m.unreachable,
					"break":       func(*rapid.T) { m.broken = !m.broken; m.apply() },
					"restart":     m.restart,
				})
			})
		})
	}
}

// model is what the registry is to be: a list of instances per "type/name", newest first.
type model struct {
	storage  modelStorage
	broken   bool
	registry *dynamicplugins.Store
	events   <-chan *dynamicplugins.PluginUpdateEvent
	expected []string // events
	plugins  map[string][]*modelInstance
	disk     map[string][]string // the IDs of plugins in the order in which the storage holds them
	stages   []*modelStage
	ranks    int // given so far
}

type modelInstance struct {
	id             string
	shown          string // version that is visible, or empty
	restored, dead bool
	stage          *modelStage
	rank, saved    int // among those of the name, highest first: the visible one, and the one that the storage has
}

type modelStage struct {
	plugin  string
	version string
	staged  dynamicplugins.Staged
}

// stored is the version that the storage holds.
func (in *modelInstance) stored() string {
	if in.stage != nil {
		return in.stage.version
	}
	return in.shown
}

// apply lets the storage fail or not.
func (m *model) apply() {
	if m.broken {
		m.storage.setFail(errBroken)
	} else {
		m.storage.setFail(nil)
	}
}

func (m *model) open(rt *rapid.T) {
	r, err := dynamicplugins.Open(m.storage, map[string]dynamicplugins.PluginDispenser{"t": dispenseInfo, "u": dispenseInfo})
	if err != nil {
		rt.Fatal(err)
	}
	m.registry, m.expected, m.stages = r, nil, nil
	m.events = r.PluginsUpdatedCh(rt.Context(), "")
}

func draw(rt *rapid.T) (plugin, id string) {
	// Few, so that most changes meet an instance that is known.
	return rapid.SampledFrom([]string{"t/a", "t/a", "t/b", "u/a"}).Draw(rt, "plugin"), rapid.SampledFrom([]string{"1", "2", "3"}).Draw(rt, "id")
}

func (m *model) find(plugin, id string) *modelInstance {
	i := slices.IndexFunc(m.plugins[plugin], func(in *modelInstance) bool { return in.id == id })
	if i < 0 {
		return nil
	}
	return m.plugins[plugin][i]
}

func (m *model) remove(plugin string, in *modelInstance) {
	m.plugins[plugin] = slices.DeleteFunc(m.plugins[plugin], func(other *modelInstance) bool { return other == in })
}

// expectSave checks the outcome of a call that had to save something, and reports whether it took place.
func (m *model) expectSave(rt *rapid.T, err error, needed bool) bool {
	if needed && m.broken {
		if !errors.Is(err, errBroken) {
			rt.Fatalf("with a broken storage: %v", err)
		}
		return false
	}
	if err != nil {
		rt.Fatal(err)
	}
	return true
}

// drawInfo draws an instance to register, and the instance of the model that it is.
func (m *model) drawInfo(rt *rapid.T) (*dynamicplugins.PluginInfo, string, *modelInstance) {
	name, id := draw(rt)
	ptype, pname, _ := strings.Cut(name, "/")
	info := version(newInfo(ptype, pname, id), rapid.SampledFrom([]string{"1", "2"}).Draw(rt, "version"))
	return info, name, m.find(name, id)
}

// wrote notes that the storage holds a plugin as it is, if it is not broken.
func (m *model) wrote(name string) {
	if m.broken {
		return
	}
	m.disk[name] = nil
	for _, in := range m.plugins[name] {
		m.disk[name] = append(m.disk[name], in.id)
	}
}

func (m *model) staged(name string, in *modelInstance, info *dynamicplugins.PluginInfo, front bool) *modelInstance {
	if in == nil {
		in = &modelInstance{id: info.AllocID}
		m.plugins[name] = append(m.plugins[name], in)
		front = true
	}
	if front && in != m.plugins[name][0] || in.saved == 0 {
		m.ranks++
		in.saved = m.ranks
	}
	m.sort(name)
	in.stage = &modelStage{plugin: name, version: info.Version}
	return in
}

// sort sorts the instances of a name as the storage has them.
func (m *model) sort(name string) {
	slices.SortFunc(m.plugins[name], func(a, b *modelInstance) int { return b.saved - a.saved })
}

func (m *model) published(in *modelInstance) {
	moved := in.rank != in.saved
	in.rank = in.saved
	switch {
	case in.shown == in.stage.version && !moved:
	case in.shown == "":
		m.expected = append(m.expected, "registered "+in.stage.plugin+" "+in.id+" "+in.stage.version)
	default:
		m.expected = append(m.expected, "updated "+in.stage.plugin+" "+in.id+" "+in.stage.version)
	}
	in.shown, in.stage, in.restored, in.dead = in.stage.version, nil, false, false
}

func (m *model) register(rt *rapid.T) {
	info, name, in := m.drawInfo(rt)
	err := m.registry.RegisterPlugin(info)
	if m.expectSave(rt, err, in == nil || in.stored() != info.Version) {
		m.published(m.staged(name, in, info, false))
		m.wrote(name)
	}
}

func (m *model) stage(rt *rapid.T) {
	info, name, in := m.drawInfo(rt)
	staged, err := m.registry.StagePlugin(info)
	if m.expectSave(rt, err, in == nil || in.stored() != info.Version) {
		in = m.staged(name, in, info, true)
		m.wrote(name)
		in.stage.staged = staged
		m.stages = append(m.stages, in.stage)
	}
}

// drawStage draws a stage, void or not, and returns its instance if it is not void.
func (m *model) drawStage(rt *rapid.T) (*modelStage, *modelInstance) {
	if len(m.stages) == 0 {
		rt.Skip("nothing is staged")
	}
	st := rapid.SampledFrom(m.stages[max(0, len(m.stages)-3):]).Draw(rt, "stage") // older ones are void, as a rule
	for _, in := range m.plugins[st.plugin] {
		if in.stage == st {
			return st, in
		}
	}
	return st, nil
}

func (m *model) publish(rt *rapid.T) {
	st, in := m.drawStage(rt)
	st.staged.Publish()
	if in != nil {
		m.published(in)
	}
}

func (m *model) discard(rt *rapid.T) {
	st, in := m.drawStage(rt)
	err := st.staged.Discard()
	writes := in != nil && (in.shown != st.version || m.returns(st.plugin, in))
	if m.expectSave(rt, err, writes) && in != nil {
		in.stage, in.saved = nil, in.rank
		m.sort(st.plugin)
		if in.shown == "" {
			m.remove(st.plugin, in)
		}
		if writes {
			m.wrote(st.plugin)
		}
	}
}

// returns says whether an instance is saved behind others again if its stage is discarded.
func (m *model) returns(name string, in *modelInstance) bool {
	return slices.ContainsFunc(m.plugins[name], func(other *modelInstance) bool {
		return other.saved < in.saved && other.saved > in.rank
	})
}

// visible draws an instance; if it is not visible, err must be ErrNotFound.
func (m *model) visible(rt *rapid.T, call func(ptype, name, id string) error) (string, *modelInstance, error) {
	name, id := draw(rt)
	ptype, pname, _ := strings.Cut(name, "/")
	in := m.find(name, id)
	err := call(ptype, pname, id)
	if in == nil || in.shown == "" {
		if !errors.Is(err, dynamicplugins.ErrNotFound) {
			rt.Fatalf("unknown instance: %v", err)
		}
		return name, nil, nil
	}
	return name, in, err
}

func (m *model) deregister(rt *rapid.T) {
	name, in, err := m.visible(rt, m.registry.DeregisterPlugin)
	if in != nil && m.expectSave(rt, err, true) {
		m.expected = append(m.expected, "deregistered "+name+" "+in.id+" "+in.shown)
		m.remove(name, in)
		m.wrote(name)
	}
}

func (m *model) confirm(rt *rapid.T) {
	if _, in, err := m.visible(rt, m.registry.ConfirmPlugin); in != nil && m.expectSave(rt, err, false) {
		in.restored, in.dead = false, false
	}
}

func (m *model) unreachable(rt *rapid.T) {
	_, in, err := m.visible(rt, func(ptype, name, id string) error {
		return m.registry.MarkUnreachable(ptype, name, id, errBroken)
	})
	if in != nil && m.expectSave(rt, err, false) {
		in.dead = true
	}
}

// restart: what is stored, staged or visible, is restored, and no more.
func (m *model) restart(rt *rapid.T) {
	m.compare(rt)
	m.registry.Shutdown()
	for name, ids := range m.disk {
		for i, id := range ids { // which may be in another order
			m.find(name, id).saved = len(ids) - i
		}
		m.sort(name)
	}
	m.broken = false
	m.apply()
	for name, instances := range m.plugins {
		for i, in := range instances {
			instances[i] = &modelInstance{id: in.id, shown: in.stored(), restored: true, saved: in.saved, rank: in.saved}
		}
		m.plugins[name] = instances
	}
	m.open(rt)
}

// compare compares everything that can be seen.
func (m *model) compare(rt *rapid.T) {
	var instances, listed, restored, stored []string
	for _, name := range []string{"t/a", "t/b", "u/a"} {
		first, current := true, ""
		for _, id := range m.disk[name] {
			stored = append(stored, name+" "+id+" "+m.find(name, id).stored())
		}
		visible := slices.Clone(m.plugins[name])
		slices.SortFunc(visible, func(a, b *modelInstance) int { return b.rank - a.rank })
		for _, in := range visible {
			if in.shown == "" {
				continue
			}
			state := dynamicplugins.InstanceSuperseded
			switch {
			case in.dead:
				state = dynamicplugins.InstanceUnreachable
			case in.restored:
				state = dynamicplugins.InstanceRestored
			case current == "":
				state = dynamicplugins.InstanceRegistered
			}
			if current == "" && !in.dead {
				current = in.id
			}
			instances = append(instances, fmt.Sprintf("%s %s %s %s", name, in.id, in.shown, state))
			if first {
				listed = append(listed, name+" "+in.id)
			}
			if in.restored {
				restored = append(restored, name+" "+in.id)
			}
			first = false
		}
		m.compareDispensed(rt, name, current, !first)
	}

	var gotInstances, gotListed, gotRestored, gotEvents []string
	for _, in := range m.registry.Instances("", "") {
		gotInstances = append(gotInstances, fmt.Sprintf("%s/%s %s %s %s", in.Info.Type, in.Info.Name, in.Info.AllocID, in.Info.Version, in.State))
		if p, err := m.registry.PluginForAlloc(in.Info.Type, in.Info.Name, in.Info.AllocID); p != in.Info {
			rt.Fatalf("PluginForAlloc: %v, %v", p, err)
		}
	}
	for _, p := range append(m.registry.ListPlugins("t"), m.registry.ListPlugins("u")...) {
		gotListed = append(gotListed, p.Type+"/"+p.Name+" "+p.AllocID)
	}
	for _, p := range m.registry.RestoredPlugins() {
		gotRestored = append(gotRestored, p.Type+"/"+p.Name+" "+p.AllocID)
	}
	for len(m.events) > 0 {
		e := <-m.events
		gotEvents = append(gotEvents, fmt.Sprintf("%s %s/%s %s %s", e.EventType, e.Info.Type, e.Info.Name, e.Info.AllocID, e.Info.Version))
	}
	for what, d := range map[string]string{
		"instances": cmp.Diff(instances, gotInstances),
		"listed":    cmp.Diff(listed, gotListed),
		"restored":  cmp.Diff(restored, gotRestored),
		"events":    cmp.Diff(m.expected, gotEvents),
		"stored":    cmp.Diff(stored, m.storedLines(rt)),
	} {
		if d != "" {
			rt.Fatalf("%s (-model +registry):\n%s", what, d)
		}
	}
	m.expected = nil
}

func (m *model) compareDispensed(rt *rapid.T, name, current string, registered bool) {
	ptype, pname, _ := strings.Cut(name, "/")
	info, err := dynamicplugins.Dispense[*dynamicplugins.PluginInfo](m.registry, ptype, pname)
	switch {
	case current != "":
		if err != nil || info.AllocID != current {
			rt.Fatalf("%s: dispensed %v, %v, want %s", name, info, err, current)
		}
	case registered && !errors.Is(err, dynamicplugins.ErrUnreachable), !registered && !errors.Is(err, dynamicplugins.ErrNotFound):
		rt.Fatalf("%s: dispensed %v, %v", name, info, err)
	case !registered:
		want := "no plugins registered for type: " + ptype
		if len(m.registry.ListPlugins(ptype)) > 0 {
			want = "plugin " + pname + " for type " + ptype + " not found"
		}
		if err.Error() != want {
			rt.Fatalf("%s: %v, want %s", name, err, want)
		}
	}
}

func (m *model) storedLines(rt *rapid.T) []string {
	m.storage.setFail(nil)
	defer m.apply()
	state, err := m.storage.GetDynamicPluginRegistryState()
	if err != nil {
		rt.Fatal(err)
	}
	var lines []string
	if state == nil {
		return nil
	}
	for _, name := range []string{"t/a", "t/b", "u/a"} {
		ptype, pname, _ := strings.Cut(name, "/")
		if instances := state.Plugins[ptype][pname]; instances != nil {
			for e := instances.Front(); e != nil; e = e.Next() {
				p := e.Value.(*dynamicplugins.PluginInfo)
				lines = append(lines, name+" "+p.AllocID+" "+p.Version)
			}
		}
	}
	return lines
}
