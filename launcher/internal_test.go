package launcher

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestLimited: what is not given to calls through fronts is told.
func TestLimited(t *testing.T) {
	var told []string
	l := New(Config{Host: &host.Host{}, OnCallsLimited: func(uid uint32, reason string, first bool) {
		if first && uid == 60001 {
			told = append(told, reason)
		}
	}})
	for {
		if _, err := l.budget.Begin(60001); err != nil {
			break
		}
	}
	if _, err := l.budget.Begin(60001); err == nil || len(told) != 1 || told[0] != "userCalls" {
		t.Errorf("%v; told %v", err, told)
	}
}

// unregistered are the registrations of a host in which no plugin is registered.
type unregistered struct{}

func (unregistered) AwaitRegistered(ctx context.Context, _ string, _ func(error)) error {
	<-ctx.Done()
	return ctx.Err()
}

func (unregistered) Announced(string) (plugin.Info, bool) { return plugin.Info{}, false }

// newIdle returns a launcher of a plugin that is started on demand, has announced itself, and has no process; and the path of its front.
func newIdle(t *testing.T) (l *Launcher, p Plugin, socket string) {
	dir := t.TempDir()
	l = New(Config{Host: &host.Host{}, Dir: dir, Registrations: unregistered{}})
	t.Cleanup(func() { l.Close(); l.CloseFronts() })
	p = Plugin{
		Spec: host.Spec{Name: "p", Args: []string{"true"}}, OnDemand: true,
		Announce: plugin.Info{Type: "T", Name: "p", Versions: []string{"v1"}},
	}
	if err := l.Set([]Plugin{p}); err != nil {
		t.Fatal(err)
	}
	socket = l.Plugins()[0].Socket
	if !isSocket(socket) {
		t.Fatalf("the launcher does not answer at %q", socket)
	}
	return l, p, socket
}

func isSocket(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().Type() == os.ModeSocket
}

// TestUnitThatReturns: a plugin that comes back before it was forgotten is the same unit, whose front stays open.
func TestUnitThatReturns(t *testing.T) {
	l, p, socket := newIdle(t)
	l.mu.Lock()
	u := l.units["p"]
	l.remove(u) // forget waits for mu
	l.configure(p)
	returned, leaving := l.units["p"] == u, len(l.leaving)
	l.mu.Unlock()
	l.work.Wait()
	if !returned || leaving != 0 {
		t.Errorf("it is the same unit: %t, and %d are leaving, want it back", returned, leaving)
	}
	if !isSocket(socket) {
		t.Errorf("the front at %s was closed, and its plugin is back", socket)
	}
}

// TestUnitThatLeaves: what was removed is forgotten, with its front.
func TestUnitThatLeaves(t *testing.T) {
	l, _, socket := newIdle(t)
	if err := l.Set(nil); err != nil {
		t.Fatal(err)
	}
	l.work.Wait()
	if n := len(l.units) + len(l.leaving); n != 0 || isSocket(socket) {
		t.Errorf("%d units are left; the front is left: %t", n, isSocket(socket))
	}
}

// TestStopClosesFront: at the socket of a plugin that was stopped nobody answers.
func TestStopClosesFront(t *testing.T) {
	l, _, socket := newIdle(t)
	if err := l.Stop("p"); err != nil {
		t.Fatal(err)
	}
	if isSocket(socket) {
		t.Errorf("the front at %s is open after Stop", socket)
	}
}

// TestTidyLeavesSurvivors: what a host that was killed made for its plugins is removed, except for those that may have survived it.
func TestTidyLeavesSurvivors(t *testing.T) {
	l := New(Config{Host: &host.Host{}, Dir: t.TempDir()})
	for _, name := range []string{"survives", "ends"} {
		if err := os.WriteFile(filepath.Join(l.cfg.Dir, "."+name+".1.sock.made"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l.tidy(map[string]Plugin{"survives": {Spec: host.Spec{Survive: true}}, "ends": {}})
	left, err := os.ReadDir(l.cfg.Dir)
	if err != nil || len(left) != 1 || left[0].Name() != ".survives.1.sock.made" {
		t.Errorf("left are %v (%v), want the socket of the plugin that survives", left, err)
	}
}

// TestZeroPlugin: a plugin of which only the program is said is what one in the configuration is of which no more is said.
func TestZeroPlugin(t *testing.T) {
	var configured catalogue.Plugin
	configured.SetDefaults()
	if !configured.Serve || !configured.Autostart || configured.Start != catalogue.StartAuto || configured.Upgrade != plugin.UpgradeSideBySide ||
		configured.Restart.Policy != plugin.RestartOnFailure || configured.Survive || configured.LogRate != 0 {
		t.Errorf("the defaults of the configuration are %+v, which this test does not know", configured)
	}
	var zero Plugin
	want := Plugin{
		Health: configured.Health, Spec: host.Spec{StopTimeout: configured.StopTimeout}, StartTimeout: configured.StartTimeout, Idle: configured.Idle,
		Restart: configured.Restart,
	}
	about := zero.about().WithDefaults()
	got := Plugin{
		Health: zero.checks("socket").HealthCheck, Spec: host.Spec{StopTimeout: zero.stopTimeout()}, StartTimeout: zero.startTimeout(),
		Idle: zero.settings().Idle, Restart: about.Restart, Upgrade: about.Upgrade, NoSocket: !about.Serves,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the configuration (-), package launcher (+):\n%s", diff)
	}
}

// TestIdentity checks that every field of the Spec that a process depends on changes the identity, and that the identity is the same in
// every program: a later version of the host compares it.
func TestIdentity(t *testing.T) {
	p := Plugin{Spec: host.Spec{Name: "p", Args: []string{"/bin/p", "a b"}, Env: []string{"A=1"}, Survive: true}}
	if got := p.identity(); got != "543b1ca2e2c277f1" {
		t.Errorf("the identity is %s", got)
	}
	ignored := []string{
		"Controller", "ExtraFiles", "StopTimeout", // may differ between two hosts
		"PluginSocket", "Admit", "Tag", "Adapter", // set by the launcher
		"Survive", // without it there is no identity
	}
	seen := map[string]string{p.identity(): "the plugin as it is"}
	add := func(what string, changed Plugin) {
		if same, exists := seen[changed.identity()]; exists {
			t.Errorf("%s and %s have the same identity", what, same)
		}
		seen[changed.identity()] = what
	}
	for field := range reflect.TypeFor[host.Spec]().Fields() {
		if slices.Contains(ignored, field.Name) {
			continue
		}
		changed := p
		switch v := reflect.ValueOf(&changed.Spec).Elem().FieldByIndex(field.Index); v.Interface().(type) {
		case string, host.Protocol:
			v.SetString("changed")
		case []string:
			v.Set(reflect.ValueOf([]string{"changed"}))
		case bool:
			v.SetBool(true)
		case plugin.Limits:
			for i := range v.NumField() {
				v.SetZero()
				v.Field(i).SetInt(7)
				add("another limit", changed)
			}
			continue
		default:
			t.Fatalf("this test cannot change %s", field.Name)
		}
		add("another "+field.Name, changed)
	}
	split, socket, none, empty := p, p, p, p
	split.Args = []string{"/bin/p", "a", "b"}
	socket.NoSocket = true
	none.Env, empty.Env = nil, []string{}
	add("other words", split)
	add("no socket", socket)
	add("the environment of the host", none)
	add("an empty environment", empty)
	p.StopTimeout, p.ExtraFiles = 1, []*os.File{os.Stdin}
	if seen[p.identity()] == "" {
		t.Error("what two hosts cannot compare changes the identity")
	}
}
