// Nomad is the contestant "nomad": the dynamic plugin registry of Nomad's client, on its own state file. It is a program and a module of
// its own, because Nomad does not compile with the versions that the other modules choose.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/dynamicplugins"
	"github.com/hashicorp/nomad/client/state"

	"github.com/patchbay-dev/patchbay/bench/internal/registry"
)

func main() {
	if err := registry.Serve(open, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "nomad:", err)
		os.Exit(1)
	}
}

// subject is Nomad's registry.
type subject struct {
	dynamicplugins.Registry
	db state.StateDB
}

func open(dir string) (registry.Subject, error) {
	dispensers := map[string]dynamicplugins.PluginDispenser{
		registry.Type: func(info *dynamicplugins.PluginInfo) (any, error) { return info, nil },
	}
	if dir == "" {
		return subject{Registry: dynamicplugins.NewRegistry(nil, dispensers)}, nil
	}
	db, err := state.NewBoltStateDB(hclog.NewNullLogger(), dir)
	if err != nil {
		return nil, err
	}
	return subject{dynamicplugins.NewRegistry(db, dispensers), db}, nil
}

func (s subject) Register(i int) error {
	return s.RegisterPlugin(&dynamicplugins.PluginInfo{
		Type: registry.Type, Name: registry.Name(i), Version: registry.Version, AllocID: registry.AllocID(i), Options: registry.Options,
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: registry.SocketPath(i)},
	})
}

func (s subject) Deregister(i int) error {
	return s.DeregisterPlugin(registry.Type, registry.Name(i), registry.AllocID(i))
}

func (s subject) Dispense(name string) error {
	_, err := s.DispensePlugin(registry.Type, name)
	return err
}

func (s subject) Wait(ctx context.Context, i int) error {
	_, err := s.WaitForPlugin(ctx, registry.Type, registry.Name(i))
	return err
}

func (s subject) Subscribe(ctx context.Context, receive func()) {
	events := s.PluginsUpdatedCh(ctx, registry.Type)
	if receive == nil {
		return
	}
	go func() {
		for range events {
			receive()
		}
	}()
}

func (s subject) List() int { return len(s.ListPlugins(registry.Type)) }

func (s subject) Close() error {
	s.Shutdown()
	if s.db == nil {
		return nil
	}
	return s.db.Close()
}
