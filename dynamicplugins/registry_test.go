package dynamicplugins_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func newInfo(ptype, name, allocID string) *dynamicplugins.PluginInfo {
	return &dynamicplugins.PluginInfo{
		Type: ptype, Name: name, AllocID: allocID, Version: "1",
		ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: "/run/" + name + allocID + ".sock"},
		Options:        map[string]string{"a": "b"},
	}
}

func dispenseInfo(info *dynamicplugins.PluginInfo) (any, error) { return info, nil }

// open makes a registry that is shut down at the end of the test.
func open(
	t testing.TB, state dynamicplugins.StateStorage, dispensers map[string]dynamicplugins.PluginDispenser, options ...dynamicplugins.Option,
) *dynamicplugins.Store {
	t.Helper()
	r, err := dynamicplugins.Open(state, dispensers, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Shutdown)
	return r
}

// newStore is NewRegistry for those who know what is behind it.
func newStore(state dynamicplugins.StateStorage, dispensers map[string]dynamicplugins.PluginDispenser) *dynamicplugins.Store {
	s, ok := dynamicplugins.NewRegistry(state, dispensers).(*dynamicplugins.Store)
	if !ok {
		panic("NewRegistry returns no Store")
	}
	return s
}

func register(t testing.TB, r *dynamicplugins.Store, plugins ...*dynamicplugins.PluginInfo) {
	t.Helper()
	for _, p := range plugins {
		if err := r.RegisterPlugin(p); err != nil {
			t.Fatal(err)
		}
	}
}

// check fails if there is an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// allocs returns the AllocIDs of instances.
func allocs(instances []dynamicplugins.Instance) []string {
	var ids []string
	for _, in := range instances {
		ids = append(ids, in.Info.AllocID)
	}
	return ids
}

func TestErrorTexts(t *testing.T) {
	r := open(t, nil, map[string]dynamicplugins.PluginDispenser{"t": dispenseInfo, "empty": dispenseInfo})
	register(t, r, newInfo("t", "n", "1"), newInfo("none", "n", "1"))
	dispense := func(ptype, name string) error {
		_, err := r.DispensePlugin(ptype, name)
		return err
	}
	forAlloc := func(ptype, name, id string) error {
		_, err := r.PluginForAlloc(ptype, name, id)
		return err
	}
	wait := func(ptype, name string) error {
		_, err := r.WaitForPlugin(t.Context(), ptype, name)
		return err
	}
	conn := func(ptype, name string) error {
		_, err := r.Conn(t.Context(), ptype, name)
		return err
	}
	_, wrong := dynamicplugins.Dispense[fmt.Stringer](r, "t", "n")
	const unknown = `no plugin for that allocation: plugin n for type t has no instance "2"`
	for _, test := range []struct {
		got  error
		want string
		is   error
	}{
		{r.RegisterPlugin(nil), "plugin info must not be nil", dynamicplugins.ErrInvalid},
		{r.RegisterPlugin(&dynamicplugins.PluginInfo{}), "Plugin.Type must not be empty", dynamicplugins.ErrInvalid},
		{r.RegisterPlugin(&dynamicplugins.PluginInfo{Type: "t", Name: "n"}), "Plugin.ConnectionInfo must not be nil", dynamicplugins.ErrInvalid},
		{r.RegisterPlugin(newInfo("t", "", "1")), "Plugin.Name must not be empty", dynamicplugins.ErrInvalid},
		{r.DeregisterPlugin("", "n", "1"), "must specify plugin type to deregister", dynamicplugins.ErrInvalid},
		{r.DeregisterPlugin("t", "", "1"), "must specify plugin name to deregister", dynamicplugins.ErrInvalid},
		{r.DeregisterPlugin("u", "n", "1"), "no plugins registered for type: u", dynamicplugins.ErrNotFound},
		{r.DeregisterPlugin("t", "m", "1"), "plugin m for type t not found", dynamicplugins.ErrNotFound},
		{r.DeregisterPlugin("t", "n", "2"), unknown, dynamicplugins.ErrNotFound},
		{r.ConfirmPlugin("t", "n", "2"), unknown, dynamicplugins.ErrNotFound},
		{r.MarkUnreachable("t", "m", "2", nil), "plugin m for type t not found", dynamicplugins.ErrNotFound},
		{dispense("", "n"), "must specify plugin type to dispense", dynamicplugins.ErrInvalid},
		{dispense("t", ""), "must specify plugin name to dispense", dynamicplugins.ErrInvalid},
		{dispense("none", "n"), "no plugin dispenser found for type: none", dynamicplugins.ErrNoDispenser},
		{dispense("empty", "n"), "no plugins registered for type: empty", dynamicplugins.ErrNotFound},
		{dispense("t", "m"), "plugin m for type t not found", dynamicplugins.ErrNotFound},
		{forAlloc("u", "n", "1"), "no plugins registered for type: u", dynamicplugins.ErrNotFound},
		{forAlloc("t", "m", "1"), "plugin m for type t not found", dynamicplugins.ErrNotFound},
		{forAlloc("t", "n", "2"), unknown, dynamicplugins.ErrNotFound},
		{wait("", "n"), "must specify plugin type to wait for", dynamicplugins.ErrInvalid},
		{wait("t", ""), "must specify plugin name to wait for", dynamicplugins.ErrInvalid},
		{conn("", "n"), "must specify plugin type to connect to", dynamicplugins.ErrInvalid},
		{conn("t", ""), "must specify plugin name to connect to", dynamicplugins.ErrInvalid},
		{conn("t", "m"), "plugin m for type t not found", dynamicplugins.ErrNotFound},
		{
			wrong, "the dispenser for type t made a *dynamicplugins.PluginInfo for plugin n, not a fmt.Stringer",
			dynamicplugins.ErrWrongClient,
		},
	} {
		if test.got == nil || test.got.Error() != test.want || !errors.Is(test.got, test.is) {
			t.Errorf("got %v, want %s", test.got, test.want)
		}
	}
}

// TestEmptyIDs: an instance without AllocID or SocketPath is one like every other.
func TestEmptyIDs(t *testing.T) {
	r := newStore(nil, nil)
	defer r.Shutdown()
	p := &dynamicplugins.PluginInfo{Type: "t", Name: "n", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{}}
	register(t, r, p, newInfo("t", "n", "1"))
	got, err := r.PluginForAlloc("t", "n", "")
	check(t, err)
	if d := cmp.Diff(p, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	check(t, r.DeregisterPlugin("t", "n", ""))
	if got := allocs(r.Instances("t", "n")); !slices.Equal(got, []string{"1"}) {
		t.Errorf("left: %v", got)
	}
}

func TestNewestWins(t *testing.T) {
	r := open(t, nil, map[string]dynamicplugins.PluginDispenser{"t": dispenseInfo})
	current := func() string {
		info, err := dynamicplugins.Dispense[*dynamicplugins.PluginInfo](r, "t", "n")
		check(t, err)
		return info.AllocID
	}
	register(t, r, newInfo("t", "n", "1"), newInfo("t", "n", "2"), newInfo("t", "n", "3"))
	update := newInfo("t", "n", "1")
	update.Version = "2"
	register(t, r, update) // keeps its rank
	if got := allocs(r.Instances("t", "n")); !slices.Equal(got, []string{"3", "2", "1"}) {
		t.Fatalf("order: %v", got)
	}
	for _, id := range []string{"3", "2", "1"} {
		if got := current(); got != id {
			t.Errorf("current is %s, want %s", got, id)
		}
		if got := r.ListPlugins("t"); len(got) != 1 || got[0].AllocID != id {
			t.Errorf("listed is %v, want %s", got, id)
		}
		check(t, r.DeregisterPlugin("t", "n", id))
	}
	if got := r.ListPlugins("t"); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// TestGivenInfoIsCopied: who registers a plugin may use its PluginInfo again.
func TestGivenInfoIsCopied(t *testing.T) {
	r := open(t, nil, nil)
	p := newInfo("t", "n", "1")
	register(t, r, p)
	p.Version, p.ConnectionInfo.SocketPath, p.Options["a"] = "changed", "changed", "changed"
	got, err := r.PluginForAlloc("t", "n", "1")
	check(t, err)
	if d := cmp.Diff(newInfo("t", "n", "1"), got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newStore(nil, map[string]dynamicplugins.PluginDispenser{"t": dispenseInfo})
		defer r.Shutdown()
		register(t, r, newInfo("t", "n", "1"), newInfo("t", "n", "2"))
		check(t, r.MarkUnreachable("t", "n", "2", errors.New("connection refused")))
		info, err := dynamicplugins.Dispense[*dynamicplugins.PluginInfo](r, "t", "n")
		check(t, err)
		if info.AllocID != "1" {
			t.Errorf("dispensed %s", info.AllocID)
		}
		time.Sleep(time.Hour)
		reason := errors.New("process ended")
		check(t, r.MarkUnreachable("t", "n", "1", reason))
		check(t, r.MarkUnreachable("t", "n", "1", errors.New("a second reason")))
		time.Sleep(time.Hour)

		_, err = r.DispensePlugin("t", "n")
		var unreachable *dynamicplugins.UnreachableError
		const want = "plugin n for type t is unreachable since 2000-01-01T00:00:00Z: connection refused"
		if !errors.As(err, &unreachable) || !errors.Is(err, dynamicplugins.ErrUnreachable) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("code is %v", status.Code(err))
		}
		instances := r.Instances("t", "n")
		if instances[1].State != dynamicplugins.InstanceUnreachable || !errors.Is(instances[1].Reason, reason) ||
			!instances[1].Since.Equal(time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC)) {
			t.Errorf("the older instance is %+v", instances[1])
		}

		register(t, r, newInfo("t", "n", "1")) // it lives again
		info, err = dynamicplugins.Dispense[*dynamicplugins.PluginInfo](r, "t", "n")
		check(t, err)
		if info.AllocID != "1" {
			t.Errorf("dispensed %s", info.AllocID)
		}
	})
}

func TestInstances(t *testing.T) {
	store := &memory{}
	r := open(t, store, nil)
	register(t, r, newInfo("t", "b", "1"), newInfo("t", "b", "2"), newInfo("t", "a", "1"), newInfo("s", "b", "1"), newInfo("t", "c", "1"))
	r.Shutdown()

	r = open(t, store, nil)
	register(t, r, newInfo("t", "b", "2"), newInfo("t", "b", "3"), newInfo("t", "a", "2"))
	check(t, r.ConfirmPlugin("t", "c", "1"))
	check(t, r.MarkUnreachable("s", "b", "1", errors.New("gone")))
	describe := func(instances []dynamicplugins.Instance) []string {
		var lines []string
		for _, in := range instances {
			lines = append(lines, fmt.Sprintf("%s/%s %s %s", in.Info.Type, in.Info.Name, in.Info.AllocID, in.State))
		}
		return lines
	}
	all := []string{
		"s/b 1 unreachable",
		"t/a 2 registered", "t/a 1 restored",
		"t/b 3 registered", "t/b 2 superseded", "t/b 1 restored",
		"t/c 1 registered",
	}
	for _, test := range []struct {
		ptype, name string
		want        []string
	}{
		{"", "", all},
		{"t", "", all[1:]},
		{"t", "b", all[3:6]},
		{"", "b", []string{all[0], all[3], all[4], all[5]}},
		{"t", "x", nil},
		{"x", "", nil},
	} {
		if d := cmp.Diff(test.want, describe(r.Instances(test.ptype, test.name))); d != "" {
			t.Errorf("Instances(%q, %q) (-want +got):\n%s", test.ptype, test.name, d)
		}
	}
	var restored []string
	for _, p := range r.RestoredPlugins() {
		restored = append(restored, p.Type+"/"+p.Name+" "+p.AllocID)
	}
	if d := cmp.Diff([]string{"s/b 1", "t/a 1", "t/b 1"}, restored); d != "" {
		t.Errorf("RestoredPlugins (-want +got):\n%s", d)
	}
}

func TestStub(t *testing.T) {
	r := open(t, nil, map[string]dynamicplugins.PluginDispenser{"t": dispenseInfo})
	register(t, r, newInfo("t", "n", "1"), newInfo("u", "n", "1"))
	stub := func(*dynamicplugins.PluginInfo) (any, error) { return "stub", nil }
	for _, ptype := range []string{"t", "u"} {
		r.StubDispenserForType(ptype, stub)
		if client, err := r.DispensePlugin(ptype, "n"); client != "stub" {
			t.Errorf("with a stub: %v, %v", client, err)
		}
		r.StubDispenserForType(ptype, nil)
	}
	if client, err := dynamicplugins.Dispense[*dynamicplugins.PluginInfo](r, "t", "n"); err != nil {
		t.Errorf("the original dispenser is not back: %v, %v", client, err)
	}
	if _, err := r.DispensePlugin("u", "n"); !errors.Is(err, dynamicplugins.ErrNoDispenser) {
		t.Errorf("there was no original dispenser: %v", err)
	}
}

// TestDispenserWithoutLocks: a dispenser may use the registry.
func TestDispenserWithoutLocks(t *testing.T) {
	var r *dynamicplugins.Store
	r = open(t, nil, map[string]dynamicplugins.PluginDispenser{"t": func(info *dynamicplugins.PluginInfo) (any, error) {
		register(t, r, newInfo("t", "other", "1"))
		return info, r.DeregisterPlugin(info.Type, info.Name, info.AllocID)
	}})
	register(t, r, newInfo("t", "n", "1"))
	if _, err := r.DispensePlugin("t", "n"); err != nil {
		t.Error(err)
	}
}

func TestShutdown(t *testing.T) {
	store := &memory{}
	r := open(t, store, map[string]dynamicplugins.PluginDispenser{"t": dispenseInfo})
	register(t, r, newInfo("t", "n", "1"))
	staged, err := r.StagePlugin(newInfo("t", "n", "2"))
	check(t, err)
	events := r.PluginsUpdatedCh(context.Background(), "")
	r.Shutdown()
	r.Shutdown()
	if _, ok := <-events; ok {
		t.Error("there was an event")
	}
	puts := store.puts
	for name, err := range failing(t, r) {
		if !errors.Is(err, dynamicplugins.ErrShutdown) {
			t.Errorf("%s: %v", name, err)
		}
	}
	staged.Publish()
	if err := staged.Discard(); !errors.Is(err, dynamicplugins.ErrShutdown) {
		t.Errorf("Discard: %v", err)
	}
	if _, ok := <-r.PluginsUpdatedCh(t.Context(), "t"); ok {
		t.Error("there was an event")
	}
	if store.puts != puts {
		t.Error("something was saved after Shutdown")
	}
}

// slow is a storage whose puts wait until they are let through.
type slow struct {
	memory
	pass chan struct{}
}

func (s *slow) PutDynamicPluginRegistryState(state *dynamicplugins.RegistryState) error {
	<-s.pass
	return s.memory.PutDynamicPluginRegistryState(state)
}

// TestShutdownWaits: those who wait for a plugin are told, and a change that is being saved is finished first.
func TestShutdownWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slow{pass: make(chan struct{})}
		r := newStore(store, nil)
		var calls sync.WaitGroup
		calls.Go(func() {
			if _, err := r.WaitForPlugin(t.Context(), "t", "never"); !errors.Is(err, dynamicplugins.ErrShutdown) {
				t.Errorf("WaitForPlugin: %v", err)
			}
		})
		calls.Go(func() {
			if err := r.RegisterPlugin(newInfo("t", "n", "1")); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		down := make(chan struct{})
		go func() {
			r.Shutdown()
			close(down)
		}()
		synctest.Wait()
		select {
		case <-down:
			t.Error("Shutdown did not wait")
		default:
		}
		close(store.pass)
		<-down
		calls.Wait()
		if len(store.stored("t", "n")) != 1 {
			t.Error("the change was not saved")
		}
	})
}

// TestPublishDuringDiscard: an instance that is being taken off the storage cannot become visible.
func TestPublishDuringDiscard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &slow{pass: make(chan struct{}, 1)}
		r := newStore(store, nil)
		defer r.Shutdown()
		store.pass <- struct{}{}
		staged := stage(t, r, newInfo("t", "n", "1"))
		discarded := make(chan error)
		go func() { discarded <- staged.Discard() }()
		synctest.Wait()
		staged.Publish()
		if instances := r.Instances("", ""); len(instances) != 0 {
			t.Errorf("visible: %+v", instances)
		}
		store.pass <- struct{}{}
		check(t, <-discarded)
		if instances := r.Instances("", ""); len(instances) != 0 || len(store.stored("t", "n")) != 0 {
			t.Errorf("left: %+v", instances)
		}
	})
}
