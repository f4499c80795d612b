// Differences prints what a registry does in the cases that the page "Coming from Nomad" lists: a line for each, with the first cell of its row
// and, after a tab, the outcome. The test compiles it twice, with Nomad's registry and with that of this repository.
package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/hashicorp/nomad/client/dynamicplugins"
)

const ptype = "T"

func main() {
	for _, c := range []struct {
		name string
		run  func() string
	}{
		{"`DeregisterPlugin` of an instance that is gone", deregisterGone},
		{"`DeregisterPlugin` with an unknown `AllocID`", deregisterOther},
		{"`DeregisterPlugin` with an empty `AllocID`", deregisterNone},
		{"`StubDispenserForType` of a type without a dispenser", stub},
		{"`RegisterPlugin` of a known `AllocID` with other details", update},
		{"a `PluginInfo` is changed after `RegisterPlugin`", change},
		{"`RegisterPlugin(nil)`", registerNil},
		{"`PluginsUpdatedCh` of the empty type", allTypes},
		{"`WaitForPlugin` of an empty type or name", waitForNothing},
		{"a dispenser calls the registry", dispenserCalls},
		{"a dispenser is nil", dispenserNil},
		{"the type of a dispenser is empty, has a slash or cannot be printed", dispenserTypes},
		{"the map of dispensers is changed after `NewRegistry`", changeDispensers},
		{"`DispensePlugin` when the last plugin of the type is gone", lastOfType},
		{"`PluginForAlloc` of an instance that is gone", forAlloc},
		{"the storage cannot load the state", loadFails},
		{"the storage cannot save a change", saveFails},
		{"the state that a storage gets", keepsState},
		{"`Shutdown` is called twice", shutdownTwice},
	} {
		fmt.Printf("%s\t%s\n", c.name, outcome(c.run))
	}
}

// outcome returns what run returns, or that it panicked.
func outcome(run func() string) (got string) {
	defer func() {
		if r := recover(); r != nil {
			got = "panic"
		}
	}()
	return run()
}

func plugin(allocID string) *dynamicplugins.PluginInfo {
	return &dynamicplugins.PluginInfo{
		Type: ptype, Name: "n", AllocID: allocID, ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/run/" + allocID},
	}
}

// registry returns a registry with instances of one plugin, the last of which is current.
func registry(storage dynamicplugins.StateStorage, allocIDs ...string) dynamicplugins.Registry {
	r := dynamicplugins.NewRegistry(storage, map[string]dynamicplugins.PluginDispenser{
		ptype: func(info *dynamicplugins.PluginInfo) (any, error) { return info.AllocID, nil },
	})
	for _, id := range allocIDs {
		if err := r.RegisterPlugin(plugin(id)); err != nil {
			panic(err)
		}
	}
	return r
}

func text(err error) string {
	if err == nil {
		return "nil"
	}
	return err.Error()
}

func deregisterGone() string {
	r := registry(nil, "1", "2")
	if err := r.DeregisterPlugin(ptype, "n", "1"); err != nil {
		return text(err)
	}
	return text(r.DeregisterPlugin(ptype, "n", "1"))
}

func deregisterOther() string {
	r := registry(nil, "1")
	events := r.PluginsUpdatedCh(context.Background(), ptype)
	deregistered := r.DeregisterPlugin(ptype, "n", "2")
	if err := r.RegisterPlugin(plugin("3")); err != nil {
		return text(err)
	}
	for e := range events {
		if e.Info.AllocID == "3" || e.EventType == dynamicplugins.EventTypeDeregistered {
			return fmt.Sprintf("%s; event: %s %s", text(deregistered), e.EventType, e.Info.AllocID)
		}
	}
	return "no event"
}

func deregisterNone() string { return text(registry(nil, "").DeregisterPlugin(ptype, "n", "")) }

func stub() string {
	r := dynamicplugins.NewRegistry(nil, nil)
	r.StubDispenserForType(ptype, func(*dynamicplugins.PluginInfo) (any, error) { return nil, nil })
	if err := r.RegisterPlugin(plugin("1")); err != nil {
		return text(err)
	}
	_, err := r.DispensePlugin(ptype, "n")
	return text(err)
}

func update() string {
	r, changed := registry(nil, "1"), plugin("1")
	changed.Version = "2"
	err := r.RegisterPlugin(changed)
	return fmt.Sprintf("%s; version %q", text(err), r.ListPlugins(ptype)[0].Version)
}

func change() string {
	r, info := registry(nil), plugin("1")
	err := r.RegisterPlugin(info)
	info.Version = "2"
	return fmt.Sprintf("%s; version %q", text(err), r.ListPlugins(ptype)[0].Version)
}

func registerNil() string { return text(registry(nil).RegisterPlugin(nil)) }

func allTypes() string {
	r := registry(nil)
	events := r.PluginsUpdatedCh(context.Background(), "")
	if err := r.RegisterPlugin(plugin("1")); err != nil {
		return text(err)
	}
	r.Shutdown() // closes the channel after the last event
	n := 0
	for range events {
		n++
	}
	return fmt.Sprintf("%d events", n)
}

func waitForNothing() string {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := registry(nil).WaitForPlugin(ctx, ptype, "")
	return text(err)
}

// dispenserCalls waits until the dispenser returns, or waits for the lock that its caller holds.
func dispenserCalls() string {
	r := registry(nil, "1")
	done := make(chan struct{})
	r.StubDispenserForType(ptype, func(*dynamicplugins.PluginInfo) (any, error) {
		r.ListPlugins(ptype)
		close(done)
		return struct{}{}, nil
	})
	go func() { _, _ = r.DispensePlugin(ptype, "n") }()
	stacks := make([]byte, 1<<20)
	for {
		select {
		case <-done:
			return "returns"
		default:
		}
		if strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "[sync.RWMutex.RLock") {
			return "deadlock"
		}
		runtime.Gosched()
	}
}

func dispenserNil() string {
	r := dynamicplugins.NewRegistry(nil, map[string]dynamicplugins.PluginDispenser{ptype: nil})
	return text(r.RegisterPlugin(plugin("1")))
}

func dispenserTypes() string {
	var all []string
	for _, of := range []string{"", "a/b", "a\n"} {
		r := dynamicplugins.NewRegistry(nil, map[string]dynamicplugins.PluginDispenser{
			of: func(*dynamicplugins.PluginInfo) (any, error) { return struct{}{}, nil },
		})
		all = append(all, text(r.RegisterPlugin(plugin("1"))))
	}
	return strings.Join(all, "; ")
}

func changeDispensers() string {
	dispensers := map[string]dynamicplugins.PluginDispenser{}
	r := dynamicplugins.NewRegistry(nil, dispensers)
	dispensers[ptype] = func(*dynamicplugins.PluginInfo) (any, error) { return struct{}{}, nil }
	if err := r.RegisterPlugin(plugin("1")); err != nil {
		return text(err)
	}
	_, err := r.DispensePlugin(ptype, "n")
	return text(err)
}

func lastOfType() string {
	r := registry(nil, "1")
	if err := r.DeregisterPlugin(ptype, "n", "1"); err != nil {
		return text(err)
	}
	_, err := r.DispensePlugin(ptype, "n")
	return text(err)
}

// forAlloc asks for an instance that is gone: the last one of its type, the last one of its plugin, and one of two.
func forAlloc() string {
	var all []string
	other := plugin("3")
	other.Name = "other"
	for _, left := range []*dynamicplugins.PluginInfo{nil, other, plugin("2")} {
		r := registry(nil, "1")
		if left != nil {
			if err := r.RegisterPlugin(left); err != nil {
				return text(err)
			}
		}
		if err := r.DeregisterPlugin(ptype, "n", "1"); err != nil {
			return text(err)
		}
		_, err := r.PluginForAlloc(ptype, "n", "1")
		all = append(all, text(err))
	}
	return strings.Join(all, "; ")
}

// storage keeps the first state, and fails to load or to save.
type storage struct {
	load, save error
	first      *dynamicplugins.RegistryState
}

func (s *storage) GetDynamicPluginRegistryState() (*dynamicplugins.RegistryState, error) {
	return nil, s.load
}

func (s *storage) PutDynamicPluginRegistryState(state *dynamicplugins.RegistryState) error {
	if s.first == nil {
		s.first = state
	}
	return s.save
}

func loadFails() string {
	return text(registry(&storage{load: errors.New("unreadable")}).RegisterPlugin(plugin("1")))
}

func saveFails() string {
	r := registry(&storage{save: errors.New("disk full")})
	err := r.RegisterPlugin(plugin("1"))
	return fmt.Sprintf("%s; %d plugins", text(err), len(r.ListPlugins(ptype)))
}

func keepsState() string {
	s := &storage{}
	registry(s, "1", "2")
	return fmt.Sprintf("%d instances", s.first.Plugins[ptype]["n"].Len())
}

func shutdownTwice() string {
	r := registry(nil, "1")
	r.Shutdown()
	r.Shutdown()
	return "nil"
}
