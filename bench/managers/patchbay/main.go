// Patchbay is each of the contestants that find plugins with Patchbay.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/bench/internal/manager"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

func main() {
	if err := manager.Play(map[string]manager.Contestant{"watcher": runWatcher, "runtime": runRuntime}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runWatcher is Patchbay's discovery alone, without registry and state.
func runWatcher(ctx context.Context, dir string, j *manager.Journal) error {
	watcher := &pipeline.Watcher{Dirs: []string{dir}, Registration: reconciler.Config{Observe: observe(j)}}
	go func() {
		<-watcher.Ready()
		j.Ready()
	}()
	watcher.AddHandler(manager.PluginType, handler{j})
	return watcher.Run(ctx)
}

// runRuntime is the whole of Patchbay as the daemon has it: with a registry, which is on disk before a plugin is told.
func runRuntime(ctx context.Context, dir string, j *manager.Journal) (err error) {
	state, err := boltstate.Open(filepath.Join(filepath.Dir(dir), "state.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	rt, err := patchbay.New(patchbay.Config{PluginDirs: []string{dir}, State: state})
	if err != nil {
		return err
	}
	rt.AddHandler(manager.PluginType, handler{j})
	note, events, ready := observe(j), rt.Events(ctx, 0), rt.Ready()
	ran := make(chan error, 1)
	go func() { ran <- rt.Run(ctx) }()
	for {
		select {
		case <-ready:
			j.Ready()
			ready = nil
		case event, ok := <-events:
			if !ok {
				return <-ran
			}
			note(event)
		}
	}
}

// observe returns a function that notes events. They come when the change that they stand for is complete: on disk, and told to the plugin.
func observe(j *manager.Journal) func(plugin.Event) {
	return func(event plugin.Event) {
		switch event.Kind {
		case plugin.EventRegistered, plugin.EventUpdated:
			j.Settled(event.Name, event.Instance)
		case plugin.EventDeregistered:
			j.Gone(event.Name, event.Instance)
		default:
		}
	}
}

// handler notes when it is called.
type handler struct{ journal *manager.Journal }

func (handler) ValidatePlugin(string, string, []string) error { return nil }

func (h handler) RegisterPlugin(name, _ string, _ []string, _ *time.Duration) error {
	return h.journal.Registered(name)
}

func (h handler) DeRegisterPlugin(name string) {
	if err := h.journal.Deregistered(name); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
