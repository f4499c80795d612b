package runtime_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/keeper"
	"github.com/patchbay-dev/patchbay/internal/pluginruntime"
	"github.com/patchbay-dev/patchbay/plugin"
)

// finder is a handler that finds out something about its plugins.
type finder struct {
	cache.PluginHandler
	found atomic.Pointer[plugin.Registration]
}

func (f *finder) RegisterPluginContext(context.Context, string, string, []string, *time.Duration) (plugin.Registration, error) {
	return *f.found.Load(), nil
}

func newFinder(found plugin.Registration) *finder {
	f := &finder{PluginHandler: patchbay.AcceptHandler()}
	f.found.Store(&found)
	return f
}

// instances returns the AllocIDs that the registry has of a name, newest first.
func (h *host) instances(ptype, name string) []string {
	var ids []string
	for _, in := range h.rt.Registry().Instances(ptype, name) {
		ids = append(ids, in.Info.AllocID)
	}
	return ids
}

func newHostWith(t *testing.T, handler cache.PluginHandler) *host {
	h := newHost(t)
	h.end()
	h.handler = handler
	h.start()
	return h
}

func TestRoles(t *testing.T) {
	details := map[string]string{"node": "n1", "patchbay.dev/source": "forged"}
	f := newFinder(plugin.Registration{Roles: []string{"node", "T", "controller", "", "node"}, Version: "2.1", Details: details})
	h := newHostWith(t, f)
	h.serve("foo", "old.sock")
	first := h.await("registered", "foo").Instance
	for _, ptype := range []string{"T", "node", "controller"} {
		info, err := h.rt.Registry().PluginForAlloc(ptype, "foo", first)
		if err != nil {
			t.Fatal(err)
		}
		if info.Version != "2.1" || info.Options["node"] != "n1" || info.Options["patchbay.dev/source"] == "forged" {
			t.Errorf("%s: %+v", ptype, info)
		}
	}
	if s := h.rt.Plugins(); len(s) != 1 || s[0].Version != "2.1" || s[0].Registration.Details["node"] != "n1" {
		t.Errorf("plugins: %+v", s)
	}

	// A newer instance, which has one role less, supersedes the older one where it is and leaves it alone where it is not.
	f.found.Store(&plugin.Registration{Roles: []string{"node"}})
	newer := h.serve("foo", "new.sock")
	second := h.await("registered", "foo").Instance
	for ptype, want := range map[string][]string{"T": {second, first}, "node": {second, first}, "controller": {first}} {
		if got := h.instances(ptype, "foo"); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", ptype, got, want)
		}
	}
	if err := newer.Stop(); err != nil {
		t.Error(err)
	}
	h.await("deregistered", "foo")
	// The survivor is registered again, and has only the role that its handler finds now.
	if e := h.await("registered", "foo"); e.Instance != first {
		t.Errorf("event %+v", e)
	}
	for ptype, want := range map[string][]string{"T": {first}, "node": {first}, "controller": nil} {
		h.eventually(func() bool { return slices.Equal(h.instances(ptype, "foo"), want) }, ptype)
	}
}

// eventually waits until the registry is as it should be, which it is told by the registry's events.
func (h *host) eventually(is func() bool, what string) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	changes := h.rt.Registry().PluginsUpdatedCh(ctx, "")
	for !is() {
		if _, ok := <-changes; !ok {
			h.t.Fatalf("%s: it does not come; the registry has %+v", what, h.rt.Registry().Instances("", ""))
		}
	}
}

func TestRolesOverARestart(t *testing.T) {
	h := newHostWith(t, newFinder(plugin.Registration{Roles: []string{"node"}, Version: "2.1", Details: map[string]string{"k": "v"}}))
	stays, goes := h.serve("stays", "stays.sock"), h.serve("goes", "goes.sock")
	h.await("registered", "stays")
	h.await("registered", "goes")
	h.end()
	if err := goes.Stop(); err != nil {
		t.Fatal(err)
	}

	h.start()
	h.await("registered", "stays")
	h.await("deregistered", "goes")
	if _, err := keeper.Of[*dynamicplugins.PluginInfo](h.rt.Registry()).WaitForConfirmedPlugin(t.Context(), "node", "stays"); err != nil {
		t.Error(err)
	}
	h.eventually(func() bool { return len(h.instances("node", "goes"))+len(h.instances("T", "goes")) == 0 }, "a role of a plugin that went")
	if s := h.rt.Plugins(); len(s) != 1 || s[0].Registration.Details["k"] != "v" || s[0].Version != "2.1" {
		t.Errorf("plugins: %+v", s)
	}
	if err := stays.Stop(); err != nil {
		t.Error(err)
	}
	h.eventually(func() bool { return len(h.rt.Registry().Instances("", "")) == 0 }, "everything gone")
}

// A host that was killed while it saved or removed an instance leaves roles without the instance.
func TestOrphanedRoles(t *testing.T) {
	h := newHostWith(t, newFinder(plugin.Registration{Roles: []string{"node"}}))
	h.serve("foo", "foo.sock")
	id := h.await("registered", "foo").Instance
	h.end()
	store, err := boltstate.Open(h.state)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.PutDynamicPluginChange(&dynamicplugins.PluginChange{Type: "T", Name: "foo"}); err != nil {
		t.Fatal(err)
	}
	rt := &pluginruntime.Runtime{Watcher: &pipeline.Watcher{Dirs: []string{h.dir}}, State: store}
	if err := rt.Open(); err != nil {
		t.Fatal(err)
	}
	if _, err := rt.Registry().PluginForAlloc("node", "foo", id); !errors.Is(err, dynamicplugins.ErrNotFound) {
		t.Errorf("the role is still there: %v", err)
	}
	rt.Registry().Shutdown()
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}
