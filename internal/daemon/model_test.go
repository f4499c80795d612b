package daemon_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/daemon"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// TestControlModel drives a daemon through its control API, plugins and restarts at random, and compares what the API says with a model that
// knows nothing but which sockets serve, in which order they came, and what was asked for.
func TestControlModel(t *testing.T) {
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		if err := checks.Value.Set("8"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = checks.Value.Set(checks.DefValue) }()
	}
	rapid.Check(t, func(rt *rapid.T) {
		m := newControlModel(t)
		defer m.end()
		rt.Repeat(map[string]func(*rapid.T){
			"serve":          m.serve,
			"end":            m.endOne,
			"restart daemon": func(*rapid.T) { m.stopDaemon(); m.startDaemon() },
			"come and go while the daemon is away": func(rt *rapid.T) {
				m.stopDaemon()
				m.endOne(rt)
				m.serve(rt)
				m.startDaemon()
			},
			"reload":       m.reload,
			"launch":       func(rt *rapid.T) { m.operate(rt, true, m.api.Launch) },
			"stop":         func(rt *rapid.T) { m.operate(rt, false, m.api.Stop) },
			"restart":      func(rt *rapid.T) { m.operate(rt, true, m.api.Restart) },
			"wait in vain": m.waitInVain,
			"":             m.check,
		})
	})
}

// asked is the type that is handled only while the configuration says so, sleeper the one entry of the catalogue.
const asked, sleeper = "Asked", "sleeper"

type controlModel struct {
	t      *testing.T
	config daemon.Options
	load   *reloadable
	stop   func() error
	api    *client.Client

	next     int
	serving  map[pluginID][]served // newest first
	handled  bool
	sleeping bool
}

type pluginID struct{ ptype, name string }

type served struct {
	stop func() error
	path string
	// instance is what the daemon called it when it was registered first.
	instance string
}

// shown is what a model says of one instance.
type shown struct {
	ID      pluginID
	State   string
	Current bool
	Path    string
}

func newControlModel(t *testing.T) *controlModel {
	m := &controlModel{t: t, config: configIn(t), load: &reloadable{}, serving: map[pluginID][]served{}}
	p := catalogue.Plugin{Name: sleeper, Command: []string{"sh", "-c", "cat >/dev/null"}}
	p.SetDefaults()
	p.Serve = false
	var err error
	if m.config.Catalogue, err = catalogue.New([]catalogue.Plugin{p}); err != nil {
		t.Fatal(err)
	}
	m.config.Load = m.load.load
	m.configure()
	m.startDaemon()
	return m
}

// configure has the daemon find the configuration that the model has when it loads it the next time.
func (m *controlModel) configure() {
	m.config.Handlers = map[string]string{"ExamplePlugin": daemon.HandlerAccept}
	if m.handled {
		m.config.Handlers[asked] = daemon.HandlerAccept
	}
	m.load.set(m.config, nil)
}

func (m *controlModel) startDaemon() {
	m.stop = start(m.t, m.config)
	m.api = client.New(m.config.ControlSocket)
	// What is in the catalogue is launched. This waits for it.
	if _, err := m.api.Launch(within(m.t), sleeper); err != nil {
		m.t.Fatal(err)
	}
	m.sleeping = true
}

func (m *controlModel) stopDaemon() {
	m.api.Close()
	if err := m.stop(); err != nil {
		m.t.Fatal(err)
	}
}

func (m *controlModel) end() {
	m.stopDaemon()
	for _, instances := range m.serving {
		for _, s := range instances {
			_ = s.stop()
		}
	}
}

func (m *controlModel) serve(rt *rapid.T) {
	id := pluginID{rapid.SampledFrom([]string{"ExamplePlugin", asked}).Draw(rt, "type"), rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "name")}
	if len(m.serving[id]) == 3 {
		return
	}
	m.next++
	path := filepath.Join(m.config.PluginDirs[0], fmt.Sprintf("%d.sock", m.next))
	plugin := pluginwatcher.NewTestExamplePlugin(id.name, id.ptype, path, "v1")
	if err := plugin.Serve(); err != nil {
		rt.Fatal(err)
	}
	m.serving[id] = append([]served{{stop: plugin.Stop, path: path}}, m.serving[id]...)
}

func (m *controlModel) endOne(rt *rapid.T) {
	if len(m.serving) == 0 {
		return
	}
	ids := slices.SortedFunc(maps.Keys(m.serving), func(a, b pluginID) int {
		return cmp.Or(cmp.Compare(a.ptype, b.ptype), cmp.Compare(a.name, b.name))
	})
	id := rapid.SampledFrom(ids).Draw(rt, "plugin")
	i := rapid.IntRange(0, len(m.serving[id])-1).Draw(rt, "instance")
	if err := m.serving[id][i].stop(); err != nil {
		rt.Fatal(err)
	}
	if m.serving[id] = slices.Delete(m.serving[id], i, i+1); len(m.serving[id]) == 0 {
		delete(m.serving, id)
	}
}

func (m *controlModel) reload(rt *rapid.T) {
	handled := rapid.Bool().Draw(rt, "handled")
	var want []string
	if handled != m.handled {
		want = []string{"handlers." + asked}
	}
	m.handled = handled
	m.configure()
	got, err := m.api.Reload(within(m.t))
	if diff := gocmp.Diff(want, got.Changed); err != nil || diff != "" {
		rt.Fatalf("reloaded: %v\n%s", err, diff)
	}
}

func (m *controlModel) operate(rt *rapid.T, sleeping bool, do func(context.Context, string) (*patchbayv1.LaunchedPlugin, error)) {
	before := m.launched(rt)
	after, err := do(within(m.t), sleeper)
	if err != nil || after.Pid != 0 != sleeping {
		rt.Fatalf("got %+v, %v", after, err)
	}
	if _, err := do(within(m.t), "unknown"); !errors.Is(err, client.ErrNotFound) {
		rt.Fatalf("of an unknown plugin: %v", err)
	}
	m.sleeping = sleeping
	if now := m.launched(rt); now.Pid != after.Pid || before.Pid != 0 && before.Restarts > now.Restarts && sleeping == (before.Pid == now.Pid) {
		rt.Fatalf("before %+v, after %+v, now %+v", before, after, now)
	}
}

func (m *controlModel) launched(rt *rapid.T) *patchbayv1.LaunchedPlugin {
	all, err := m.api.ListLaunched(within(m.t))
	if err != nil || len(all) != 1 || all[0].Name != sleeper {
		rt.Fatalf("launched: %+v, %v", all, err)
	}
	return all[0]
}

func (m *controlModel) waitInVain(rt *rapid.T) {
	ctx, cancel := context.WithCancel(m.t.Context())
	cancel()
	if _, err := m.api.Wait(ctx, "ExamplePlugin", "never", client.GoalRegistered); !errors.Is(err, context.Canceled) {
		rt.Fatalf("waiting for what never comes: %v", err)
	}
	if _, err := m.api.Wait(within(m.t), "ExamplePlugin", "never", client.GoalDeregistered); err != nil {
		rt.Fatal(err)
	}
}

// want returns what the API should show.
func (m *controlModel) want() []shown {
	all := []shown{{ID: pluginID{name: sleeper}, State: map[bool]string{true: "running", false: "stopped"}[m.sleeping]}}
	for id, instances := range m.serving {
		for i, s := range instances {
			this := shown{ID: id, State: "registered", Current: i == 0, Path: s.path}
			switch {
			case id.ptype == asked && !m.handled:
				this.State, this.Current = "refused", false
			case i > 0:
				this.State = "superseded"
			}
			all = append(all, this)
		}
	}
	return sorted(all)
}

func sorted(all []shown) []shown {
	slices.SortFunc(all, func(a, b shown) int { return cmp.Compare(a.Path, b.Path) })
	return all
}

func (m *controlModel) show(rt *rapid.T) ([]shown, []*patchbayv1.Plugin) {
	listing, err := m.api.List(within(m.t))
	if err != nil {
		rt.Fatal(err)
	}
	all := []shown{}
	for _, p := range listing.Plugins {
		if p.State == "starting" && p.Name == sleeper {
			p.State = "running" // which it becomes without an event
		}
		all = append(all, shown{pluginID{p.Type, p.Name}, p.State, p.Current, p.SocketPath})
	}
	return sorted(all), listing.Plugins
}

// check waits until the API says what the model says: whenever something happened, it looks again.
func (m *controlModel) check(rt *rapid.T) {
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	want := m.want()
	got, plugins := m.show(rt)
	if !slices.Equal(want, got) {
		for _, err := range m.api.Events(ctx, &patchbayv1.WatchEventsRequest{Follow: true}) {
			if got, plugins = m.show(rt); slices.Equal(want, got) {
				break
			}
			if err != nil {
				rt.Fatalf("it does not become so (-want +got): %v\n%s", err, gocmp.Diff(want, got, gocmp.AllowUnexported(pluginID{})))
			}
		}
	}
	for id, instances := range m.serving {
		handled := id.ptype != asked || m.handled
		for i := range instances {
			s := &instances[i]
			p := plugins[slices.IndexFunc(plugins, func(p *patchbayv1.Plugin) bool { return p.SocketPath == s.path })]
			if handled {
				s.instance = cmp.Or(s.instance, p.Instance)
			} else {
				s.instance = "" // to be forgotten by the handler is an end
			}
			// One that was found after its successor has no identifier until it is registered.
			if handled && (p.Instance != s.instance || p.Instance == "" && p.Current) {
				rt.Fatalf("%s was instance %s and is %s", s.path, s.instance, p.Instance)
			}
		}
		one, err := m.api.Get(ctx, id.ptype, id.name)
		// Behind them come refusals of instances that are gone.
		one = slices.DeleteFunc(one, func(p *patchbayv1.Plugin) bool {
			return p.State == "refused" && !slices.ContainsFunc(instances, func(s served) bool { return s.path == p.SocketPath })
		})
		if err != nil || len(one) != len(instances) {
			rt.Fatalf("got %+v, %v, want %d instances of %v", one, err, len(instances), id)
		}
		if p, err := m.api.Wait(ctx, id.ptype, id.name, map[bool]client.Goal{true: client.GoalRegistered, false: client.GoalDeregistered}[handled]); err != nil ||
			handled && p.SocketPath != instances[0].path {
			rt.Fatalf("the one that is current is %+v, %v, want %s", p, err, instances[0].path)
		}
	}
	if now := m.launched(rt); now.Pid != 0 != m.sleeping {
		rt.Fatalf("launched %+v, want a process: %t", now, m.sleeping)
	}
}
