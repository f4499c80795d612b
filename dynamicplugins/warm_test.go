package dynamicplugins_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// TestConnectedWhileStaged: the connection to a plugin for which somebody waits is made before the plugin is published, once, and closed if
// it never is. For one for which nobody waits none is made.
func TestConnectedWhileStaged(t *testing.T) {
	r := open(t, nil, nil, dynamicplugins.WithConnDispenser("t", health))
	s := serve(t, "awaited")
	found := await(t, r, "n")

	staged, err := r.StagePlugin(s.info("1"))
	check(t, err)
	s.awaitOpen(t, 1)
	check(t, staged.Discard())
	s.awaitOpen(t, 0)

	_, err = r.StagePlugin(s.info("1"))
	check(t, err)
	s.awaitOpen(t, 1)
	staged, err = r.StagePlugin(s.info("1")) // which makes the one before void
	check(t, err)
	for s.connections() != 3 {
		runtime.Gosched()
	}
	s.awaitOpen(t, 1)
	staged.Publish()
	if p := <-found; p == nil || p.AllocID != "1" {
		t.Fatalf("found %v", p)
	}
	client, err := dynamicplugins.Dispense[healthClient](r, "t", "n")
	check(t, err)
	expectWho(t, client, "awaited")
	if n := s.connections(); n != 3 {
		t.Errorf("%d connections were made, want no more than the 3 for the 3 times it was staged", n)
	}

	// Two that are staged while somebody waits are published in the other order: only the newer one's connection stays.
	older, newer := serve(t, "older"), serve(t, "newer")
	two := await(t, r, "two")
	var both []dynamicplugins.Staged
	for i, server := range []*server{older, newer} {
		info := server.info(fmt.Sprint(i))
		info.Name = "two"
		st, err := r.StagePlugin(info)
		check(t, err)
		both = append(both, st)
		server.awaitOpen(t, 1)
	}
	both[1].Publish()
	<-two
	both[0].Publish()
	older.awaitOpen(t, 0)
	newer.awaitOpen(t, 1)

	other := serve(t, "other")
	info := other.info("1")
	info.Name = "other"
	staged, err = r.StagePlugin(info)
	check(t, err)
	staged.Publish()
	if _, err := dynamicplugins.Dispense[healthClient](r, "t", "other"); err != nil || other.connections() != 0 {
		t.Errorf("%v, %d connections were made before a call", err, other.connections())
	}
}

// await waits for a plugin, and returns when it does.
func await(t *testing.T, r *dynamicplugins.Store, name string) <-chan *dynamicplugins.PluginInfo {
	t.Helper()
	found := make(chan *dynamicplugins.PluginInfo, 1)
	go func() {
		p, err := r.WaitForPlugin(t.Context(), "t", name)
		if err != nil {
			t.Error(err)
		}
		found <- p
	}()
	for !r.Awaited("t", name) {
		runtime.Gosched()
	}
	return found
}

func (s *server) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

// hanging is a storage whose changes wait until the test says how they end.
type hanging struct {
	changesOnly

	ends chan error
}

func (s hanging) PutDynamicPluginChange(*dynamicplugins.PluginChange) error { return <-s.ends }

// TestConnectedWhileSaved: the connection to a plugin for which somebody waits is made while it is saved, and closed if that fails.
func TestConnectedWhileSaved(t *testing.T) {
	state := hanging{ends: make(chan error)}
	r := open(t, state, nil, dynamicplugins.WithConnDispenser("t", health))
	s := serve(t, "awaited")
	found := await(t, r, "n")
	for _, fails := range []error{errBroken, nil} {
		done := make(chan error)
		go func() {
			staged, err := r.StagePlugin(s.info("1"))
			if err == nil {
				staged.Publish()
			}
			done <- err
		}()
		s.awaitOpen(t, 1)
		state.ends <- fails
		if err := <-done; !errors.Is(err, fails) {
			t.Fatalf("staged with %v, want %v", err, fails)
		}
		if fails != nil {
			s.awaitOpen(t, 0)
		}
	}
	<-found
	s.awaitOpen(t, 1)
	if n := s.connections(); n != 2 {
		t.Errorf("%d connections were made, want one for each time it was staged", n)
	}
}
