package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// reloadable is a configuration that a test can replace while a daemon runs with it.
type reloadable struct {
	mu   sync.Mutex
	next daemon.Options
	err  error
	logs []config.Log
}

func (r *reloadable) set(c daemon.Options, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next, r.err = c, err
}

func (r *reloadable) load() (*config.Loaded, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.next.Loaded
	return &next, r.err
}

type timeouts = plugin.Timeouts

func (r *reloadable) setLog(l config.Log) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.logs = append(r.logs, l)
}

func (r *reloadable) logsSet() []config.Log {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.logs)
}

// startReloadable runs a daemon whose configuration is that of configIn with changes.
func startReloadable(t *testing.T, change func(*daemon.Options)) (cfg daemon.Options, r *reloadable, c *client.Client) {
	t.Helper()
	cfg = configIn(t)
	r = &reloadable{}
	cfg.Load, cfg.SetLog = r.load, r.setLog
	if change != nil {
		change(&cfg)
	}
	r.set(cfg, nil)
	start(t, cfg)
	return cfg, r, dial(t, cfg)
}

func serveType(t *testing.T, cfg daemon.Options, ptype, name string) {
	t.Helper()
	example := pluginwatcher.NewTestExamplePlugin(name, ptype, filepath.Join(cfg.PluginDirs[0], name+".sock"), "v1")
	if err := example.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := example.Stop(); err != nil {
			t.Error(err)
		}
	})
}

func await(t *testing.T, c *client.Client, ptype, name string, goal client.Goal) {
	t.Helper()
	if _, err := c.Wait(within(t), ptype, name, goal); err != nil {
		t.Fatal(err)
	}
}

func condition(t *testing.T, c *client.Client) *patchbayv1.Condition {
	t.Helper()
	listing, err := c.List(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if names := []string{listing.Conditions[0].Name, listing.Conditions[1].Name}; !slices.Equal(names, []string{"configuration", "directories"}) {
		t.Fatalf("conditions %q", names)
	}
	return listing.Conditions[0]
}

// eventsOf returns the kinds and messages of the past events of one plugin; of the daemon's own, without the audit, for an empty type.
func eventsOf(t *testing.T, c *client.Client, ptype, name string) []string {
	t.Helper()
	var kinds []string
	for event, err := range c.Events(within(t), &patchbayv1.WatchEventsRequest{}) {
		if err != nil {
			t.Fatal(err)
		}
		if event.Type == ptype && event.Name == name && event.SocketPath == "" == (ptype == "") &&
			event.Kind != "audit" {
			kinds = append(kinds, event.Kind+" "+event.Message)
		}
	}
	return kinds
}

func TestReload(t *testing.T) {
	cfg, r, c := startReloadable(t, nil)
	serveExample(t, cfg, "one")
	serveType(t, cfg, "New", "two")
	await(t, c, "ExamplePlugin", "one", client.GoalRegistered)

	next := cfg
	next.Handlers = map[string]string{"ExamplePlugin": daemon.HandlerAccept, "New": daemon.HandlerAccept}
	next.Log.Level, next.Log.Format = "debug", "text"
	next.Timeouts.Dial = 2 * time.Second
	next.TypeTimeouts = map[string]timeouts{"B": {Dial: time.Second}, "A": {}}
	next.ClientTimeouts = map[string]time.Duration{"A": time.Second}
	p := catalogue.Plugin{Name: "p", Command: []string{"p"}}
	p.SetDefaults()
	p.Autostart = false // there is no such program
	var err error
	if next.Catalogue, err = catalogue.New([]catalogue.Plugin{p}); err != nil {
		t.Fatal(err)
	}
	r.set(next, nil)
	want := []string{"handlers.New", "log.level", "log.format", "timeouts", "typeTimeouts.A", "typeTimeouts.B", "clientTimeouts.A", "plugins.p"}
	for _, want := range [][]string{want, {}} {
		reloaded, err := c.Reload(within(t))
		if err != nil || !slices.Equal(reloaded.Changed, want) {
			t.Errorf("got %q, %v, want %q", reloaded.Changed, err, want)
		}
	}
	await(t, c, "New", "two", client.GoalRegistered)
	if logs := r.logsSet(); len(logs) != 1 || logs[0] != next.Log {
		t.Errorf("the log was set to %v", logs)
	}

	// A failure changes nothing, is a condition until the next success, and keeps its beginning.
	wrong := next
	wrong.Handlers, wrong.Log.Level, wrong.Log.Format = nil, "", ""
	restart := wrong
	restart.State, restart.PluginDirs, restart.Bounds.MaxDepth = "other", []string{"other"}, 1
	invalid := wrong
	invalid.HTTP = ":80"
	var since *timestamppb.Timestamp
	for i, broken := range []struct {
		cfg  daemon.Options
		err  error
		want string
	}{
		{wrong, errors.New("f:1:2: broken\nf:3:4: twice"), "f:1:2: broken\nf:3:4: twice"},
		{restart, nil, "needs a restart: pluginDirs, state, bounds; nothing was changed"},
		{invalid, nil, "cannot serve HTTP"},
	} {
		r.set(broken.cfg, broken.err)
		if _, err := c.Reload(within(t)); err == nil || !strings.HasPrefix(err.Error(), "cannot reload the configuration: "+broken.want) {
			t.Errorf("got %v, want %q", err, broken.want)
		}
		state := condition(t, c)
		if state.Status != "degraded" || !strings.Contains(state.Message, strings.ReplaceAll(broken.want, "\n", "; ")) {
			t.Errorf("condition %+v, want %q", state, broken.want)
		}
		if i > 0 && !proto.Equal(state.Since, since) {
			t.Errorf("degraded since %v, want %v", state.Since, since)
		}
		since = state.Since
	}
	r.set(next, nil)
	if reloaded, err := c.Reload(within(t)); err != nil || len(reloaded.Changed) > 0 {
		t.Errorf("after the failures: %v, %v", reloaded, err)
	}
	if state := condition(t, c); state.Status != "ok" {
		t.Errorf("condition %+v", state)
	}
	if logs := r.logsSet(); len(logs) > 1 {
		t.Errorf("a failed reload set the log: %v", logs)
	}
	for name, ptype := range map[string]string{"one": "ExamplePlugin", "two": "New"} {
		events := eventsOf(t, c, ptype, name)
		if last := events[len(events)-1]; !strings.HasPrefix(last, "registered") || slices.ContainsFunc(events, func(e string) bool {
			return strings.HasPrefix(e, "deregistered")
		}) {
			t.Errorf("events of %s: %q", name, events)
		}
	}
	wantEvents := []string{
		"reloaded the configuration was reloaded: " + strings.Join(want, ", "),
		"reloaded the configuration was reloaded: nothing changed",
		"reload-failed f:1:2: broken; f:3:4: twice",
		"reload-failed needs a restart: pluginDirs, state, bounds; nothing was changed",
		"reload-failed cannot serve HTTP",
		"reloaded the configuration was reloaded: nothing changed",
	}
	got := eventsOf(t, c, "", "")
	if len(got) != len(wantEvents) {
		t.Fatalf("events %q", got)
	}
	for i := range got {
		if !strings.HasPrefix(got[i], wantEvents[i]) {
			t.Errorf("event %d is %q, want %q", i, got[i], wantEvents[i])
		}
	}

	// What is taken away goes, and a default type goes back to what it is by default.
	less := next
	less.Handlers = map[string]string{"New": daemon.HandlerAccept, "CSIPlugin": daemon.HandlerAccept}
	r.set(less, nil)
	if reloaded, err := c.Reload(within(t)); err != nil || !slices.Equal(reloaded.Changed, []string{"handlers.CSIPlugin", "handlers.ExamplePlugin"}) {
		t.Errorf("got %v, %v", reloaded, err)
	}
	await(t, c, "ExamplePlugin", "one", client.GoalDeregistered)
	await(t, c, "New", "two", client.GoalRegistered)
}

// TestReloadedTimeouts waits for a plugin that never answers: with the timeout of the start it would take an hour to fail.
func TestReloadedTimeouts(t *testing.T) {
	cfg, r, c := startReloadable(t, func(c *daemon.Options) { c.Timeouts.GetInfo = time.Hour })
	next := cfg
	next.Timeouts.GetInfo = time.Millisecond
	r.set(next, nil)
	if _, err := c.Reload(within(t)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cfg.PluginDirs[0], "silent.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	events := c.Events(within(t), &patchbayv1.WatchEventsRequest{Follow: true})
	for event, err := range events {
		if err != nil {
			t.Fatal(err)
		}
		if event.SocketPath == path && event.Kind == string(plugin.EventFailed) {
			return
		}
	}
}

// TestReloadCatalogue launches what a reload brings, and ends what it takes away.
func TestReloadCatalogue(t *testing.T) {
	cfg, r, c := startReloadable(t, nil)
	next := cfg
	p := catalogue.Plugin{Name: "p", Command: []string{"sleep", "1000"}}
	p.SetDefaults()
	p.Serve = false
	var err error
	if next.Catalogue, err = catalogue.New([]catalogue.Plugin{p}); err != nil {
		t.Fatal(err)
	}
	r.set(next, nil)
	if changed, err := c.Reload(within(t)); err != nil || !slices.Equal(changed.Changed, []string{"plugins.p"}) {
		t.Fatalf("changed %v, %v", changed, err)
	}
	launched, err := c.Launch(within(t), "p") // which waits until its process runs
	if err != nil || launched.Pid == 0 {
		t.Fatalf("launched %+v, %v", launched, err)
	}
	if _, err := c.Reload(within(t)); err != nil {
		t.Fatal(err)
	}
	if same, err := c.ListLaunched(within(t)); err != nil || len(same) != 1 || same[0].Pid != launched.Pid {
		t.Errorf("after a reload without a change %+v, %v, want process %d", same, err, launched.Pid)
	}
	r.set(cfg, nil)
	if _, err := c.Reload(within(t)); err != nil {
		t.Fatal(err)
	}
	if none, err := c.ListLaunched(within(t)); err != nil || len(none) != 0 {
		t.Errorf("after its removal %+v, %v", none, err)
	}
	if _, err := c.Stop(within(t), "p"); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("stop of what is not in the catalogue: %v", err)
	}
}

// TestReloadsUnderLoad reloads at random while plugins come and go. One that no reload concerns has no event but its registration.
func TestReloadsUnderLoad(t *testing.T) {
	cfg, r, c := startReloadable(t, nil)
	serveExample(t, cfg, "stable")
	await(t, c, "ExamplePlugin", "stable", client.GoalRegistered)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		var churn sync.WaitGroup
		for i, ptype := range []string{"A", "B", "ExamplePlugin"} {
			churn.Go(func() {
				name := fmt.Sprintf("churn-%d-%d", round, i)
				example := pluginwatcher.NewTestExamplePlugin(name, ptype, filepath.Join(cfg.PluginDirs[0], name+".sock"), "v1")
				if err := example.Serve(); err != nil {
					t.Error(err)
					return
				}
				if err := example.Stop(); err != nil {
					t.Error(err)
				}
			})
		}
		for i := range rapid.IntRange(1, 3).Draw(rt, "reloads") {
			next := cfg
			next.Handlers = map[string]string{"ExamplePlugin": daemon.HandlerAccept}
			for _, ptype := range rapid.SliceOf(rapid.SampledFrom([]string{"A", "B"})).Draw(rt, fmt.Sprint("types ", i)) {
				next.Handlers[ptype] = daemon.HandlerAccept
			}
			next.Timeouts.GetInfo = time.Duration(rapid.IntRange(1, 3).Draw(rt, fmt.Sprint("timeout ", i))) * time.Minute
			fails := rapid.Bool().Draw(rt, fmt.Sprint("fails ", i))
			if fails {
				next.State = "other"
			}
			r.set(next, nil)
			var calls sync.WaitGroup
			for range 3 {
				calls.Go(func() {
					if _, err := c.Reload(within(t)); (err != nil) != fails {
						t.Errorf("got %v, want an error: %t", err, fails)
					}
				})
			}
			calls.Wait()
		}
		churn.Wait()
		r.set(cfg, nil)
		if _, err := c.Reload(within(t)); err != nil {
			rt.Fatal(err)
		}
	})
	// That one may be too long ago to be kept.
	if events := eventsOf(t, c, "ExamplePlugin", "stable"); slices.ContainsFunc(events, func(e string) bool { return !strings.HasPrefix(e, "registered") }) {
		t.Errorf("events of a plugin that no reload concerned: %q", events)
	}
	// What was left is the configuration of the start.
	serveType(t, cfg, "ExamplePlugin", "late")
	await(t, c, "ExamplePlugin", "late", client.GoalRegistered)
	serveType(t, cfg, "A", "refused")
	for event, err := range c.Events(within(t), &patchbayv1.WatchEventsRequest{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if event.Name == "refused" {
			if event.Kind != string(plugin.EventRefused) {
				t.Errorf("a plugin without a handler: %v", event)
			}
			break
		}
	}
}

// TestReloadBeforeAndAfter reloads a daemon that does not run yet, that stops, and that has stopped.
func TestReloadBeforeAndAfter(t *testing.T) {
	cfg := configIn(t)
	r := &reloadable{}
	cfg.Load = r.load
	r.set(cfg, nil)
	d, err := daemon.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Reload(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("before the start: %v", err)
	}
	early := make(chan error, 1)
	go func() {
		_, err := d.Reload(t.Context())
		select {
		case <-d.Ready():
		default:
			err = errors.Join(err, errors.New("it has reloaded before it was ready"))
		}
		early <- err
	}()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	if err := <-early; err != nil {
		t.Errorf("during the start: %v", err)
	}
	<-d.Ready()
	var storm sync.WaitGroup
	for range 8 {
		storm.Go(func() {
			for {
				if _, err := d.Reload(t.Context()); err != nil {
					if !strings.Contains(err.Error(), "stopping") {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	storm.Wait()
	if _, err := d.Reload(t.Context()); err == nil {
		t.Error("a daemon that has ended reloads")
	}
}

func TestNothingToReload(t *testing.T) {
	cfg := configIn(t)
	start(t, cfg)
	if _, err := dial(t, cfg).Reload(within(t)); err == nil || !strings.Contains(err.Error(), "it was set by a program") {
		t.Errorf("got %v", err)
	}
}
