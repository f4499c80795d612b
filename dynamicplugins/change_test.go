package dynamicplugins_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
)

// storedAllocs returns the AllocIDs that are stored of plugin t/n.
func storedAllocs(store *changing) []string {
	var ids []string
	for _, p := range store.stored("t", "n") {
		ids = append(ids, p.AllocID+" "+p.Version)
	}
	return ids
}

func version(p *dynamicplugins.PluginInfo, v string) *dynamicplugins.PluginInfo {
	p.Version = v
	return p
}

// expectEvents reads the events that have been sent and compares them.
func expectEvents(t testing.TB, events <-chan *dynamicplugins.PluginUpdateEvent, want ...string) {
	t.Helper()
	var got []string
	for len(events) > 0 {
		e := <-events
		got = append(got, string(e.EventType)+" "+e.Info.AllocID+" "+e.Info.Version)
	}
	if !slices.Equal(got, want) {
		t.Errorf("events are %q, want %q", got, want)
	}
}

func expectStored(t testing.TB, store *changing, want ...string) {
	t.Helper()
	if got := storedAllocs(store); !slices.Equal(got, want) {
		t.Errorf("stored is %q, want %q", got, want)
	}
}

func stage(t testing.TB, r *dynamicplugins.Store, p *dynamicplugins.PluginInfo) dynamicplugins.Staged {
	t.Helper()
	staged, err := r.StagePlugin(p)
	check(t, err)
	return staged
}

// TestStage: a staged instance is stored and has its rank, and nobody sees it.
func TestStage(t *testing.T) {
	store := &changing{}
	r := open(t, store, map[string]dynamicplugins.PluginDispenser{"t": dispenseInfo})
	events := r.PluginsUpdatedCh(t.Context(), "t")
	first := stage(t, r, newInfo("t", "n", "1"))
	second := stage(t, r, newInfo("t", "n", "2"))
	expectStored(t, store, "2 1", "1 1")
	expectEvents(t, events)
	_, err := r.PluginForAlloc("t", "n", "1")
	_, dispenseErr := r.DispensePlugin("t", "n")
	for _, err := range []error{err, dispenseErr, r.DeregisterPlugin("t", "n", "1"), r.ConfirmPlugin("t", "n", "1")} {
		if err == nil || err.Error() != "no plugins registered for type: t" {
			t.Errorf("a staged instance is seen: %v", err)
		}
	}
	if seen := len(r.ListPlugins("t")) + len(r.Instances("", "")) + len(r.RestoredPlugins()); seen != 0 {
		t.Errorf("a staged instance is seen %d times", seen)
	}

	second.Publish()
	first.Publish() // staged before: older
	expectEvents(t, events, "registered 2 1", "registered 1 1")
	if got := allocs(r.Instances("t", "n")); !slices.Equal(got, []string{"2", "1"}) {
		t.Errorf("order: %v", got)
	}
	first.Publish()
	check(t, first.Discard())
	expectEvents(t, events)
	expectStored(t, store, "2 1", "1 1")
}

func TestDiscard(t *testing.T) {
	store := &changing{}
	r := open(t, store, nil)
	register(t, r, newInfo("t", "n", "1"))
	events := r.PluginsUpdatedCh(t.Context(), "")
	added := stage(t, r, newInfo("t", "n", "2"))
	changed := stage(t, r, version(newInfo("t", "n", "1"), "2"))
	expectStored(t, store, "1 2", "2 1")

	broken := errors.New("disk on fire")
	store.setFail(broken)
	if err := added.Discard(); !errors.Is(err, broken) {
		t.Errorf("Discard: %v", err)
	}
	store.setFail(nil)
	check(t, added.Discard())
	check(t, added.Discard())
	expectStored(t, store, "1 2")
	check(t, changed.Discard())
	expectStored(t, store, "1 1")
	added.Publish()
	changed.Publish()
	expectEvents(t, events)
	if p, err := r.PluginForAlloc("t", "n", "1"); err != nil || p.Version != "1" {
		t.Errorf("the registered instance is %v, %v", p, err)
	}
}

// TestStageOfKnown: what is staged last is the current one, also if it was there before.
func TestStageOfKnown(t *testing.T) {
	store := &changing{}
	r := open(t, store, map[string]dynamicplugins.PluginDispenser{"t": dispenseInfo})
	for _, id := range []string{"1", "2", "3"} {
		register(t, r, newInfo("t", "n", id))
	}
	events := r.PluginsUpdatedCh(t.Context(), "")
	current := func(want string) {
		t.Helper()
		p, err := dynamicplugins.Dispense[*dynamicplugins.PluginInfo](r, "t", "n")
		check(t, err)
		if p.AllocID != want {
			t.Errorf("%s is current, want %s", p.AllocID, want)
		}
	}
	first := stage(t, r, newInfo("t", "n", "1"))
	second := stage(t, r, newInfo("t", "n", "2"))
	expectStored(t, store, "2 1", "1 1", "3 1")
	check(t, r.MarkUnreachable("t", "n", "1", nil)) // anything that makes the order visible
	current("3")
	check(t, first.Discard())
	expectStored(t, store, "2 1", "3 1", "1 1")
	expectEvents(t, events)
	second.Publish()
	current("2")
	expectEvents(t, events, "updated 2 1")
	stage(t, r, newInfo("t", "n", "2")).Publish()
	expectEvents(t, events)
	if got := allocs(r.Instances("t", "n")); !slices.Equal(got, []string{"2", "3", "1"}) {
		t.Errorf("order: %v", got)
	}
}

// TestOrderThatCannotBeSaved: it counts nevertheless, and is saved with the next change.
func TestOrderThatCannotBeSaved(t *testing.T) {
	store := &changing{}
	r := open(t, store, nil)
	for _, id := range []string{"1", "2"} {
		register(t, r, newInfo("t", "n", id))
	}
	store.setFail(errBroken)
	stage(t, r, newInfo("t", "n", "1")).Publish()
	if got := allocs(r.Instances("t", "n")); !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("order: %v", got)
	}
	expectStored(t, store, "2 1", "1 1")
	if _, err := r.StagePlugin(version(newInfo("t", "n", "1"), "2")); !errors.Is(err, errBroken) {
		t.Errorf("other details: %v", err)
	}
	store.setFail(nil)
	register(t, r, newInfo("t", "n", "1"))
	expectStored(t, store, "1 1", "2 1")
}

// TestPublishAfterFailedDiscard: what could not be discarded is still staged.
func TestPublishAfterFailedDiscard(t *testing.T) {
	store := &changing{}
	r := open(t, store, nil)
	staged := stage(t, r, newInfo("t", "n", "1"))
	store.setFail(errors.New("disk on fire"))
	if err := staged.Discard(); err == nil {
		t.Error("Discard succeeded")
	}
	staged.Publish()
	if _, err := r.PluginForAlloc("t", "n", "1"); err != nil {
		t.Error(err)
	}
}

// TestVoidStages: an earlier stage of an instance, and every stage of one that is deregistered, has no effect.
func TestVoidStages(t *testing.T) {
	store := &changing{}
	r := open(t, store, nil)
	events := r.PluginsUpdatedCh(t.Context(), "t")
	early := stage(t, r, version(newInfo("t", "n", "1"), "1"))
	late := stage(t, r, version(newInfo("t", "n", "1"), "2"))
	early.Publish()
	check(t, early.Discard())
	expectEvents(t, events)
	expectStored(t, store, "1 2")
	late.Publish()
	expectEvents(t, events, "registered 1 2")

	update := stage(t, r, version(newInfo("t", "n", "1"), "3"))
	check(t, r.DeregisterPlugin("t", "n", "1"))
	update.Publish()
	check(t, update.Discard())
	expectEvents(t, events, "deregistered 1 2")
	expectStored(t, store)
}

// TestSameDetails: registering what is known changes nothing, and writes nothing.
func TestSameDetails(t *testing.T) {
	store := &changing{}
	r := open(t, store, nil)
	register(t, r, newInfo("t", "n", "1"), newInfo("t", "n", "2"))
	events := r.PluginsUpdatedCh(t.Context(), "t")
	before, err := r.PluginForAlloc("t", "n", "1")
	check(t, err)
	puts := store.puts
	register(t, r, newInfo("t", "n", "1"))
	stage(t, r, newInfo("t", "n", "2")).Publish()
	check(t, stage(t, r, newInfo("t", "n", "2")).Discard())
	if store.puts != puts {
		t.Error("something was saved")
	}
	expectEvents(t, events)
	if after, err := r.PluginForAlloc("t", "n", "1"); after != before {
		t.Errorf("the instance was replaced: %v, %v", after, err)
	}

	changes := []func(*dynamicplugins.PluginInfo){
		func(p *dynamicplugins.PluginInfo) { p.Version = "2" },
		func(p *dynamicplugins.PluginInfo) { p.ConnectionInfo.SocketPath = "/run/other.sock" },
		func(p *dynamicplugins.PluginInfo) { p.Options = map[string]string{"a": "c"} },
		func(p *dynamicplugins.PluginInfo) { p.Options = nil },
	}
	for i, change := range changes {
		p := newInfo("t", "n", "1")
		change(p)
		register(t, r, p)
		if e := <-events; e.EventType != dynamicplugins.EventTypeUpdated || e.Info.AllocID != "1" {
			t.Errorf("change %d: event %+v", i, e)
		}
	}
	expectEvents(t, events)
}

// TestSavedFirst: a change that cannot be saved is an error of its call and nothing else.
func TestSavedFirst(t *testing.T) {
	store := &changing{}
	r := open(t, store, nil)
	register(t, r, newInfo("t", "n", "1"))
	events := r.PluginsUpdatedCh(t.Context(), "")
	broken := errors.New("disk on fire")
	store.setFail(broken)
	_, staging := r.StagePlugin(newInfo("t", "n", "2"))
	for name, err := range map[string]error{
		"new":         r.RegisterPlugin(newInfo("t", "n", "2")),
		"newName":     r.RegisterPlugin(newInfo("t", "m", "1")),
		"update":      r.RegisterPlugin(version(newInfo("t", "n", "1"), "2")),
		"deregister":  r.DeregisterPlugin("t", "n", "1"),
		"StagePlugin": staging,
	} {
		if !errors.Is(err, broken) || !errors.Is(err, dynamicplugins.ErrNotSaved) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.RegisterPlugin(newInfo("t", "n", "2")); err.Error() != "cannot save plugin n for type t: disk on fire" {
		t.Error(err)
	}
	expectEvents(t, events)
	if instances := r.Instances("", ""); len(instances) != 1 || instances[0].Info.Version != "1" {
		t.Errorf("instances: %+v", instances)
	}
	store.setFail(nil)
	register(t, r, newInfo("t", "n", "2"))
	expectEvents(t, events, "registered 2 1")
	expectStored(t, store, "2 1", "1 1")
}

// TestSavedBeforeSeen: at the moment of the event, and when RegisterPlugin returns, the instance is stored.
func TestSavedBeforeSeen(t *testing.T) {
	store := &changing{}
	r := open(t, store, nil)
	events := r.PluginsUpdatedCh(t.Context(), "t")
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 100 {
			e := <-events
			if stored := store.stored("t", e.Info.Name); len(stored) != 1 {
				t.Errorf("%s was announced and is not stored", e.Info.Name)
			}
		}
	})
	for i := range 100 {
		register(t, r, newInfo("t", string(rune('A'+i)), "1"))
	}
	wg.Wait()
}

// TestConcurrentChanges: changes of one plugin and of several at once add up, in memory and in the storage.
func TestConcurrentChanges(t *testing.T) {
	store := &changing{}
	r := open(t, store, nil)
	var wg sync.WaitGroup
	for i := range 8 {
		id := string(rune('a' + i))
		wg.Go(func() {
			for round := range 50 {
				register(t, r, newInfo("t", "n", id), newInfo("t", "m"+id, id))
				if round%2 == 0 {
					check(t, stage(t, r, newInfo("t", "n", id+"staged")).Discard())
				}
				if i%2 == 0 || round < 49 {
					check(t, r.DeregisterPlugin("t", "n", id))
				}
			}
		})
	}
	wg.Wait()
	var left []string
	for _, in := range r.Instances("t", "n") {
		left = append(left, in.Info.AllocID+" "+in.Info.Version)
	}
	expectStored(t, store, left...)
	slices.Sort(left)
	if want := []string{"b 1", "d 1", "f 1", "h 1"}; !slices.Equal(left, want) {
		t.Errorf("left: %q, want %q", left, want)
	}
	if n := len(r.ListPlugins("t")); n != 9 {
		t.Errorf("%d names", n)
	}
}
