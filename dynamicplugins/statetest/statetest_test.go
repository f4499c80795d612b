package statetest

import (
	"container/list"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// memory is a correct storage of the two documented methods, which keeps directories in memory.
type memory struct {
	mu      *sync.Mutex
	dirs    map[string]*dynamicplugins.RegistryState
	dir     string
	distort func(*dynamicplugins.RegistryState) // makes it incorrect
}

func newMemory(distort func(*dynamicplugins.RegistryState)) Open {
	m := memory{mu: new(sync.Mutex), dirs: make(map[string]*dynamicplugins.RegistryState), distort: distort}
	return func(dir string) (dynamicplugins.StateStorage, error) {
		opened := m
		opened.dir = dir
		return opened, nil
	}
}

func (m memory) GetDynamicPluginRegistryState() (*dynamicplugins.RegistryState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return duplicate(m.dirs[m.dir]), nil
}

func (m memory) PutDynamicPluginRegistryState(state *dynamicplugins.RegistryState) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	state = duplicate(state)
	if state != nil && m.distort != nil {
		m.distort(state)
	}
	m.dirs[m.dir] = state
	return nil
}

func duplicate(state *dynamicplugins.RegistryState) *dynamicplugins.RegistryState {
	plugins, _ := flatten(state)
	return stateOf(slices.Concat(slices.Collect(maps.Values(plugins))...)...)
}

// each calls change for every instance of a state.
func each(change func(*dynamicplugins.PluginInfo)) func(*dynamicplugins.RegistryState) {
	return func(state *dynamicplugins.RegistryState) {
		for _, names := range state.Plugins {
			for _, instances := range names {
				for e := instances.Front(); e != nil; e = e.Next() {
					p := *e.Value.(*dynamicplugins.PluginInfo)
					change(&p)
					e.Value = &p
				}
			}
		}
	}
}

// changing adds single changes to memory.
type changing struct{ memory }

func (c changing) PutDynamicPluginChange(change *dynamicplugins.PluginChange) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	plugins, _ := flatten(c.dirs[c.dir])
	plugins[plugin{change.Type, change.Name}] = change.Plugins
	c.dirs[c.dir] = stateOf(slices.Concat(slices.Collect(maps.Values(plugins))...)...)
	return nil
}

// jsonFile is how a storage goes wrong that encodes the state without looking: a list.List has no exported fields.
type jsonFile struct{ path string }

func (f jsonFile) GetDynamicPluginRegistryState() (*dynamicplugins.RegistryState, error) {
	data, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	state := new(dynamicplugins.RegistryState)
	return state, errors.Join(err, json.Unmarshal(data, state))
}

func (f jsonFile) PutDynamicPluginRegistryState(state *dynamicplugins.RegistryState) error {
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return os.WriteFile(f.path, data, 0o600)
}

func openChanging() Open {
	open := newMemory(nil)
	return func(dir string) (dynamicplugins.StateStorage, error) {
		s, err := open(dir)
		return changing{s.(memory)}, err
	}
}

func TestCorrectStoragesPass(t *testing.T) {
	t.Run("TwoMethods", func(t *testing.T) { Test(t, newMemory(nil)) })
	t.Run("Changes", func(t *testing.T) { Test(t, openChanging()) })
}

func TestWrongStoragesFail(t *testing.T) {
	for name, wrong := range map[string]struct {
		open Open
		fail string // one case that must fail
	}{
		"JSON": {fail: "Populated", open: func(dir string) (dynamicplugins.StateStorage, error) {
			return jsonFile{filepath.Join(dir, "state.json")}, nil
		}},
		"Forgetful": {fail: "Populated", open: func(string) (dynamicplugins.StateStorage, error) {
			return newMemory(nil)("")
		}},
		"ReversedOrder": {fail: "Populated", open: newMemory(func(state *dynamicplugins.RegistryState) {
			for _, names := range state.Plugins {
				for name, instances := range names {
					reversed := list.New()
					for e := instances.Front(); e != nil; e = e.Next() {
						reversed.PushFront(e.Value)
					}
					names[name] = reversed
				}
			}
		})},
		"NoOptions":        {fail: "Populated", open: newMemory(each(func(p *dynamicplugins.PluginInfo) { p.Options = nil }))},
		"NoVersion":        {fail: "Populated", open: newMemory(each(func(p *dynamicplugins.PluginInfo) { p.Version = "" }))},
		"NoConnectionInfo": {fail: "Populated", open: newMemory(each(func(p *dynamicplugins.PluginInfo) { p.ConnectionInfo = nil }))},
		"OnlyUTF8": {fail: "OddBytes", open: newMemory(each(func(p *dynamicplugins.PluginInfo) {
			p.AllocID = string([]rune(p.AllocID))
		}))},
		"LosingChanges": {fail: "ConcurrentChanges", open: func(string) (dynamicplugins.StateStorage, error) {
			return losing{changing{memory{mu: new(sync.Mutex), dirs: make(map[string]*dynamicplugins.RegistryState)}}}, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorder{TB: t}
			var running sync.WaitGroup
			running.Go(func() { test(r, wrong.open, cases[wrong.fail]) })
			running.Wait()
			if r.failure == "" {
				t.Errorf("case %s did not notice", wrong.fail)
			}
			t.Log(r.failure)
		})
	}
}

// recorder records the failure of a test, which it ends.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Fatal(args ...any) {
	r.failure = fmt.Sprint(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }

// losing says yes and does nothing.
type losing struct{ changing }

func (losing) PutDynamicPluginChange(*dynamicplugins.PluginChange) error { return nil }
