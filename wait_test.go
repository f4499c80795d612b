package patchbay_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/keeper"
	"github.com/patchbay-dev/patchbay/plugin"
)

// memory is a StateStorage.
type memory struct{ state *dynamicplugins.RegistryState }

func (m *memory) GetDynamicPluginRegistryState() (*dynamicplugins.RegistryState, error) {
	return m.state, nil
}

func (m *memory) PutDynamicPluginRegistryState(state *dynamicplugins.RegistryState) error {
	m.state = state
	return nil
}

// TestWaitForPluginsOfTheHost checks that WaitForPlugins returns for plugins that the host itself registers, and for such a plugin that was
// restored and confirmed, of which there is no event.
func TestWaitForPluginsOfTheHost(t *testing.T) {
	info := &dynamicplugins.PluginInfo{
		Type: "T", Name: "own", AllocID: "1", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/nowhere"},
	}
	state, dir := &memory{}, t.TempDir()
	for _, step := range []struct {
		name    string
		enliven func(*dynamicplugins.Store) error
	}{
		{"registered", func(r *dynamicplugins.Store) error { return r.RegisterPlugin(info) }},
		{"registered again", func(r *dynamicplugins.Store) error { return r.RegisterPlugin(info) }},
		{"confirmed", func(r *dynamicplugins.Store) error {
			return keeper.Of[*dynamicplugins.PluginInfo](r).ConfirmPlugin(info.Type, info.Name, info.AllocID)
		}},
	} {
		t.Run(step.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt, err := patchbay.New(patchbay.Config{PluginDirs: []string{dir}, State: state})
				if err != nil {
					t.Fatal(err)
				}
				defer rt.Registry().Shutdown()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				opened := make(chan error, 1)
				go func() { opened <- rt.WaitForPlugins(ctx, plugin.Name{Type: info.Type, Name: info.Name}) }()
				synctest.Wait()
				if len(opened) > 0 {
					t.Fatalf("the gate opened before: %v", <-opened)
				}
				if err := step.enliven(rt.Registry()); err != nil {
					t.Fatal(err)
				}
				if err := <-opened; err != nil {
					t.Errorf("the gate stays shut: %v", err)
				}
			})
		})
	}
}
