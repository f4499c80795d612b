package dynamicplugins_test

import (
	"container/list"
	"errors"
	"maps"
	"sync"
	"testing"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// memory is a storage of the two documented methods.
type memory struct {
	mu    sync.Mutex
	state *dynamicplugins.RegistryState
	puts  int
	fail  error // of every method, if it is set
}

func (m *memory) GetDynamicPluginRegistryState() (*dynamicplugins.RegistryState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state, m.fail
}

func (m *memory) PutDynamicPluginRegistryState(state *dynamicplugins.RegistryState) error {
	return m.put(func() { m.state = state })
}

func (m *memory) put(change func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.puts++
	if m.fail == nil {
		change()
	}
	return m.fail
}

func (m *memory) setFail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = err
}

// stored returns what is stored of one plugin, newest first.
func (m *memory) stored(ptype, name string) []*dynamicplugins.PluginInfo {
	m.mu.Lock()
	defer m.mu.Unlock()
	var plugins []*dynamicplugins.PluginInfo
	if m.state != nil && m.state.Plugins[ptype][name] != nil {
		for e := m.state.Plugins[ptype][name].Front(); e != nil; e = e.Next() {
			plugins = append(plugins, e.Value.(*dynamicplugins.PluginInfo))
		}
	}
	return plugins
}

// changing is memory that takes single changes.
type changing struct{ memory }

func (c *changing) PutDynamicPluginRegistryState(*dynamicplugins.RegistryState) error {
	return errors.New("the registry is to put single changes")
}

func (c *changing) PutDynamicPluginChange(change *dynamicplugins.PluginChange) error {
	return c.put(func() {
		state := &dynamicplugins.RegistryState{Plugins: make(map[string]map[string]*list.List)}
		if c.state != nil {
			for ptype, names := range c.state.Plugins {
				state.Plugins[ptype] = maps.Clone(names)
			}
		}
		if state.Plugins[change.Type] == nil {
			state.Plugins[change.Type] = make(map[string]*list.List)
		}
		delete(state.Plugins[change.Type], change.Name)
		if len(change.Plugins) > 0 {
			l := list.New()
			for _, p := range change.Plugins {
				l.PushBack(p)
			}
			state.Plugins[change.Type][change.Name] = l
		}
		c.state = state
	})
}

func TestLoadFailure(t *testing.T) {
	broken := errors.New("disk on fire")
	store := &memory{fail: broken}
	if _, err := dynamicplugins.Open(store, nil); !errors.Is(err, broken) || !errors.Is(err, dynamicplugins.ErrNotLoaded) {
		t.Errorf("Open: %v", err)
	}
	r := newStore(store, map[string]dynamicplugins.PluginDispenser{"t": dispenseInfo})
	store.setFail(nil)
	for _, ptype := range []string{"t", ""} {
		select {
		case _, open := <-r.PluginsUpdatedCh(t.Context(), ptype):
			if open {
				t.Error("there was an event")
			}
		default:
			t.Errorf("the channel of the events of type %q is open, and silent", ptype)
		}
	}
	for name, err := range failing(t, r) {
		if !errors.Is(err, broken) || !errors.Is(err, dynamicplugins.ErrNotLoaded) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if plugins := r.ListPlugins("t"); len(plugins) != 0 {
		t.Errorf("plugins are listed: %v", plugins)
	}
	r.Shutdown()
	if store.puts != 0 {
		t.Error("something was saved")
	}
}

// failing calls every method that can fail.
func failing(t *testing.T, r *dynamicplugins.Store) map[string]error {
	errs := map[string]error{
		"RegisterPlugin":   r.RegisterPlugin(newInfo("t", "n", "1")),
		"DeregisterPlugin": r.DeregisterPlugin("t", "n", "1"),
		"ConfirmPlugin":    r.ConfirmPlugin("t", "n", "1"),
		"MarkUnreachable":  r.MarkUnreachable("t", "n", "1", errors.New("reason")),
	}
	_, errs["StagePlugin"] = r.StagePlugin(newInfo("t", "n", "1"))
	_, errs["PluginForAlloc"] = r.PluginForAlloc("t", "n", "1")
	_, errs["WaitForPlugin"] = r.WaitForPlugin(t.Context(), "t", "n")
	_, errs["WaitForConfirmedPlugin"] = r.WaitForConfirmedPlugin(t.Context(), "t", "n")
	_, errs["DispensePlugin"] = r.DispensePlugin("t", "n")
	_, errs["Conn"] = r.Conn(t.Context(), "t", "n")
	return errs
}

func TestLoadRefusesWhatItCannotKeep(t *testing.T) {
	for name, test := range map[string]struct {
		values []any
		want   string
	}{
		"Type":      {[]any{"text"}, `plugin "n" for type "t": an instance is stored as string instead of *PluginInfo`},
		"Nil":       {[]any{(*dynamicplugins.PluginInfo)(nil)}, `plugin "n" for type "t": plugin info must not be nil`},
		"NoConn":    {[]any{&dynamicplugins.PluginInfo{Type: "t", Name: "n"}}, `plugin "n" for type "t": Plugin.ConnectionInfo must not be nil`},
		"OtherName": {[]any{newInfo("t", "m", "1")}, `plugin "n" for type "t": it has an instance of plugin "m" for type "t"`},
		"Twice":     {[]any{newInfo("t", "n", "1"), newInfo("t", "n", "1")}, `plugin "n" for type "t": it has two instances "1"`},
	} {
		t.Run(name, func(t *testing.T) {
			l := list.New()
			for _, v := range test.values {
				l.PushBack(v)
			}
			store := &memory{state: &dynamicplugins.RegistryState{Plugins: map[string]map[string]*list.List{"t": {"n": l}}}}
			_, err := dynamicplugins.Open(store, nil)
			want := "cannot load the plugin registry's state: " + test.want
			if err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
}

// TestLoadIgnoresEmptyNames: the original keeps names without instances.
func TestLoadIgnoresEmptyNames(t *testing.T) {
	store := &memory{state: &dynamicplugins.RegistryState{Plugins: map[string]map[string]*list.List{"t": {"n": list.New(), "m": nil}}}}
	r, err := dynamicplugins.Open(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Shutdown()
	if instances := r.Instances("", ""); len(instances) != 0 {
		t.Errorf("instances: %v", instances)
	}
	if _, err := r.PluginForAlloc("t", "n", "1"); err == nil || err.Error() != "no plugins registered for type: t" {
		t.Errorf("PluginForAlloc: %v", err)
	}
}
