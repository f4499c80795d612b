package dynamicplugins

import (
	"container/list"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/patchbay-dev/patchbay/plugin"
)

// gate is a storage whose puts wait until they are let through with a result.
type gate struct {
	entered chan *RegistryState
	results chan error
}

func (g *gate) GetDynamicPluginRegistryState() (*RegistryState, error) { return nil, nil }

func (g *gate) PutDynamicPluginRegistryState(state *RegistryState) error {
	g.entered <- state
	return <-g.results
}

// TestWholeStatesAreGrouped: with a storage of two methods, changes that wait for it are saved together and fail together.
func TestWholeStatesAreGrouped(t *testing.T) {
	g := &gate{entered: make(chan *RegistryState), results: make(chan error)}
	w := &wholeSaver{state: g, lists: make(map[plugin.Name]*list.List)}
	var callers sync.WaitGroup
	save := func(name string) error {
		return w.saveTogether([]saving{{key: plugin.Name{Type: "t", Name: name}, plugins: []*PluginInfo{{Type: "t", Name: name}}}})
	}
	waiting := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.next == nil {
			return 0
		}
		return len(w.next.lists)
	}
	// together lets n callers save while the gate is closed, and waits until they are one group.
	together := func(prefix string, n int, errs []error) {
		for i := range n {
			callers.Go(func() { errs[i] = save(fmt.Sprint(prefix, i)) })
		}
		for waiting() < n {
			runtime.Gosched()
		}
	}

	first := make([]error, 1)
	callers.Go(func() { first[0] = save("first") })
	if state := <-g.entered; len(state.Plugins["t"]) != 1 {
		t.Errorf("the first state has %v", state.Plugins)
	}
	failing := make([]error, 20)
	together("failing ", 20, failing)
	g.results <- nil

	if state := <-g.entered; len(state.Plugins["t"]) != 21 {
		t.Errorf("the second state has %v", state.Plugins)
	}
	working := make([]error, 10)
	together("working ", 10, working)
	broken := errors.New("disk on fire")
	g.results <- broken

	if state := <-g.entered; len(state.Plugins["t"]) != 11 {
		t.Errorf("the third state has %v", state.Plugins)
	}
	g.results <- nil
	callers.Wait()
	for _, err := range failing {
		if !errors.Is(err, broken) {
			t.Errorf("a caller of the failed state got %v", err)
		}
	}
	if err := errors.Join(append(working, first...)...); err != nil {
		t.Error(err)
	}
}
