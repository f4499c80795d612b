package bench

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// runWatcher is Patchbay's discovery alone, without registry and state.
func runWatcher(ctx context.Context, dir string, m *Manager) error {
	watcher := pluginwatcher.New(pluginwatcher.Config{
		Dirs:       []string{dir},
		Scanned:    func() { close(m.ready) },
		Reconciler: reconciler.Config{Observe: m.observe},
	})
	watcher.AddCacheHandler(pluginType, handler{m})
	return watcher.Run(ctx)
}

// runRuntime is the whole of Patchbay as the daemon has it: with a registry, which is on disk before a plugin is told.
func runRuntime(ctx context.Context, dir string, m *Manager) (err error) {
	state, err := boltstate.Open(filepath.Join(filepath.Dir(dir), "state.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	rt, err := patchbay.New(patchbay.Config{PluginDirs: []string{dir}, State: state})
	if err != nil {
		return err
	}
	rt.AddHandler(pluginType, handler{m})
	ran := make(chan error, 1)
	go func() { ran <- rt.Run(ctx) }()
	select {
	case <-rt.Ready():
		close(m.ready)
	case err := <-ran:
		return err
	}
	for event := range rt.Events(ctx, 0) {
		m.observe(event.Event)
	}
	return <-ran
}

// observe takes over an event. It comes when the change that it stands for is complete: on disk, and told to the plugin.
func (m *Manager) observe(event reconciler.Event) {
	switch event.Kind {
	case reconciler.EventRegistered:
		m.setSettled(event.Name)
	case reconciler.EventDeregistered:
		m.setGone(event.Name)
	default:
	}
}

// handler notes when RegisterPlugin is called.
type handler struct{ manager *Manager }

func (handler) ValidatePlugin(string, string, []string) error { return nil }

func (h handler) RegisterPlugin(name, _ string, _ []string, _ *time.Duration) error {
	return h.manager.setRegistered(name)
}

func (handler) DeRegisterPlugin(string) {}
