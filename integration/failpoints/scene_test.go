//go:build linux

package failpoints

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gofail "go.etcd.io/gofail/runtime"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/patchbay-dev/patchbay/catalogue"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/daemon"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
	"github.com/patchbay-dev/patchbay/reconciler"
)

const (
	// patience is how long something that has to happen may take on a machine that is busy.
	patience  = time.Minute
	ptype     = "ExamplePlugin"
	neighbour = "neighbour"
	version   = "1.0.0"
	// guest is the plugin that meets the failure.
	guest = "guest"
)

// scene is a daemon in this process, with a plugin that does not notice that a point fails, in a directory of its own.
type scene struct {
	*testing.T

	dir    string
	config daemon.Config
	client *client.Client
	log    *transcript

	end     func() error // ends the daemon that runs; nil while none does
	armed   []arm
	plugins map[string]*rig.Plugin
	// services returns what a plugin serves besides; nil for nothing.
	services func(name, version string) func(*grpc.Server)
	// instances are those that have to be the same after a restart.
	instances map[string]string
	before    goleak.Option // goroutines that are none of its own
	err       error         // what play wants to have looked at
}

// arm is a point that fails, and how, as gofail says it.
type arm struct{ point, terms string }

// once has a point fail the first time that it is reached, with a text that says so.
func once(point string) arm { return times(point, 1) }

// times has a point fail the first times that it is reached.
func times(point string, n int) arm {
	return arm{point, fmt.Sprintf("%d*return(%q)", n, injected+point)}
}

// injected begins the text of what fails.
const injected = "injected: "

func newScene(t *testing.T) *scene {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb") // short: the path of a socket is limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &scene{T: t, dir: dir, log: &transcript{}, before: goleak.IgnoreCurrent(), plugins: map[string]*rig.Plugin{}, instances: map[string]string{}}
	s.config = daemon.Config{
		PluginDirs: []string{s.path("plugins")}, StatePath: s.path("state.db"), ControlSocket: s.path("control.sock"),
		DispenseDir: s.path("dispense"), HTTPAddr: "127.0.0.1:0",
		Handlers: map[string]daemon.HandlerKind{ptype: daemon.HandlerAccept},
		Logger:   slog.New(slog.NewTextHandler(s.log, nil)),
	}
	s.config.Load = func() (daemon.Config, error) { return s.config, nil }
	s.client = client.New(s.config.ControlSocket)
	t.Cleanup(s.client.Close)
	return s
}

func (s *scene) path(name string) string { return filepath.Join(s.dir, name) }

// tryStart starts the daemon; the error is that with which it ended at once.
func (s *scene) tryStart() error {
	s.Helper()
	d, err := daemon.New(s.config)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	select {
	case err := <-ended:
		cancel()
		return err
	case <-d.Ready():
	case <-time.After(patience):
		s.Error("the daemon does not become ready")
	}
	s.end = func() error {
		cancel()
		s.client.Close()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return errors.New("the daemon does not end")
		}
	}
	return nil
}

func (s *scene) start() {
	s.Helper()
	if err := s.tryStart(); err != nil {
		s.Fatalf("the daemon does not start: %v", err)
	}
}

// stop ends the daemon, if one runs.
func (s *scene) stop() error {
	if s.end == nil {
		return nil
	}
	end := s.end
	s.end = nil
	return end()
}

// begin starts the daemon, with the neighbour.
func (s *scene) begin() {
	s.Helper()
	s.start()
	s.serve(neighbour)
	s.registered(neighbour)
	s.await("the neighbour answers", func() bool { return s.call(neighbour) == nil })
}

// arm has the points fail.
func (s *scene) arm() {
	s.Helper()
	for _, a := range s.armed {
		if err := gofail.Enable(a.point, a.terms); err != nil {
			s.Fatalf("%s: %v", a.point, err)
		}
	}
}

// disarm ends that, and checks that each point has failed.
func (s *scene) disarm() {
	s.Helper()
	for _, a := range s.armed {
		if _, count, err := gofail.Status(a.point); err != nil || count == 0 {
			s.Errorf("point %s was not reached: %d, %v", a.point, count, err)
		}
		if err := gofail.Disable(a.point); err != nil {
			s.Error(err)
		}
	}
}

// serve starts a plugin in this process.
func (s *scene) serve(name string) {
	s.Helper()
	var more func(*grpc.Server)
	if s.services != nil {
		more = s.services(name, version)
	}
	p, err := rig.Serve(ptype, name, version, filepath.Join(s.path("plugins"), name+".sock"), more)
	if err != nil {
		s.Fatal(err)
	}
	s.plugins[name] = p
	s.Cleanup(func() {
		if s.plugins[name] == p {
			_ = p.Stop(true)
		}
	})
}

// leave ends a plugin; its socket stays if left is set.
func (s *scene) leave(name string, left bool) {
	s.Helper()
	p := s.plugins[name]
	delete(s.plugins, name)
	delete(s.instances, name)
	if err := p.Stop(left); err != nil {
		s.Error(err)
	}
}

// registered waits until a plugin is registered and has been told so, and keeps its instance.
func (s *scene) registered(name string) {
	s.Helper()
	p := s.wait(name, client.GoalRegistered)
	if p == nil {
		return
	}
	s.instances[name] = p.Instance
	if mine := s.plugins[name]; mine != nil {
		select {
		case told := <-mine.Told:
			mine.Told <- told
		case <-time.After(patience):
			s.Errorf("%s is registered and was not told", name)
		}
	}
}

func (s *scene) deregistered(name string) { s.Helper(); s.wait(name, client.GoalDeregistered) }

func (s *scene) wait(name string, goal client.Goal) *client.Plugin {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	p, err := s.client.Wait(ctx, ptype, name, goal)
	if err != nil {
		s.Error(err)
	}
	return p
}

// call calls a plugin through its stable socket.
func (s *scene) call(name string) error {
	conn, err := grpc.NewClient("unix:"+filepath.Join(s.config.DispenseDir, ptype, name+".sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	return err
}

// await waits until something is so.
func (s *scene) await(what string, holds func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); !holds(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("it is not so: %s", what)
		}
	}
}

func (s *scene) list() client.Listing { s.Helper(); return rig.List(s, s.client) }

func (s *scene) events() []client.Event {
	s.Helper()
	var all []client.Event
	for e, err := range s.client.Events(context.WithoutCancel(s.Context()), client.EventsOptions{}) {
		if err != nil {
			s.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// said says whether something was said.
func (s *scene) said(n naming) bool {
	s.Helper()
	switch n.where {
	case inEvent:
		return slices.ContainsFunc(s.events(), func(e client.Event) bool {
			return e.Name != neighbour && strings.Contains(e.Kind+": "+e.Message, n.text)
		})
	case inCondition:
		return slices.ContainsFunc(s.list().Conditions, func(c client.Condition) bool {
			return c.Status != "ok" && strings.Contains(c.Name+": "+c.Message, n.text)
		})
	case inLog:
		return strings.Contains(s.log.String(), n.text)
	case inError:
		return s.err != nil && strings.Contains(s.err.Error(), n.text)
	}
	s.Fatalf("nothing is said in %q", n.where)
	return false
}

// hear waits until all is said that is to be.
func (s *scene) hear(all []naming) {
	s.Helper()
	for _, n := range all {
		switch n.where {
		case inError:
			if !s.said(n) {
				s.Errorf("the error is %v, want %q", s.err, n.text)
			}
			continue
		case toPlugin:
			select {
			case text := <-s.plugins[guest].Refused:
				if !strings.Contains(text, n.text) {
					s.Errorf("the plugin is told %q, want %q", text, n.text)
				}
			case <-time.After(patience):
				s.Errorf("the plugin is not told %q", n.text)
			}
			continue
		}
		s.await(fmt.Sprintf("the %s has %q", n.where, n.text), func() bool { return s.said(n) })
	}
}

// check checks that the plugins are registered, each once, that nothing is wrong any more, and that the neighbour noticed nothing.
func (s *scene) check() {
	s.Helper()
	if s.config.Catalogue != nil {
		s.registered(guest)
		for _, p := range s.list().Plugins {
			if p.Name == guest && p.Source != string(reconciler.SourceLaunched) {
				s.Errorf("the guest was launched, and is listed as %s", p.Source)
			}
		}
	}
	for name := range s.plugins {
		before, known := s.instances[name]
		if s.registered(name); known && s.instances[name] != before {
			s.Errorf("%s was instance %s and is %s", name, before, s.instances[name])
		}
	}
	for name := range s.instances {
		s.await(name+" answers", func() bool { return s.call(name) == nil })
	}
	s.await("nothing is degraded", func() bool {
		return !slices.ContainsFunc(s.list().Conditions, func(c client.Condition) bool { return c.Status != "ok" })
	})
	current := map[string]string{}
	for _, p := range s.list().Plugins {
		if p.State != "registered" || !p.Current || current[p.Name] != "" || p.LastError != "" {
			s.Errorf("a plugin is %+v", p)
		}
		current[p.Name] = p.Instance
	}
	for name, instance := range s.instances {
		if current[name] != instance {
			s.Errorf("%s was instance %s and is %q", name, instance, current[name])
		}
	}
	if len(current) != len(s.instances) {
		s.Errorf("the daemon has the plugins %v, want %v", current, s.instances)
	}
	for _, e := range s.events() {
		if e.Name == neighbour && e.Kind != "registered" && e.Kind != "restored" {
			s.Errorf("the neighbour has the event %+v", e)
		}
	}
}

// finish checks that the daemon is as it should be, and is so again after a restart, and that nothing is left of it and of the plugins.
func (s *scene) finish() {
	s.Helper()
	if s.end != nil {
		s.check()
		if err := s.stop(); err != nil {
			s.Errorf("the daemon ended with %v", err)
		}
	}
	s.start()
	s.check()
	for name := range s.plugins {
		s.leave(name, false)
		s.deregistered(name)
	}
	s.config.Catalogue = nil
	if _, err := s.client.Reload(s.Context()); err != nil {
		s.Error(err)
	}
	s.await("no plugin is left", func() bool { return len(s.list().Plugins) == 0 })
	if err := s.stop(); err != nil {
		s.Errorf("the daemon ended with %v", err)
	}
	state, err := boltstate.Open(s.config.StatePath)
	if err != nil {
		s.Fatal(err)
	}
	stored, err := state.GetDynamicPluginRegistryState()
	if err := errors.Join(err, state.Close()); err != nil || len(stored.Plugins) > 0 {
		s.Errorf("the state file has %v, %v", stored, err)
	}
	left := []string{}
	err = filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if rel := strings.TrimPrefix(path, s.dir+"/"); !entry.IsDir() && rel != "state.db" && rel != "state.db.events" {
			left = append(left, rel)
		}
		return err
	})
	if err != nil || len(left) > 0 {
		s.Errorf("these files are left: %v, %v", left, err)
	}
	if err := goleak.Find(s.before); err != nil {
		s.Error(err)
	}
}

// launchable puts this program into the catalogue, as a plugin that the daemon launches.
func (s *scene) launchable(more func(*catalogue.Plugin)) {
	s.Helper()
	p := catalogue.Plugin{}
	p.SetDefaults()
	p.Name, p.Command, p.Env = guest, []string{os.Args[0]}, map[string]string{roleEnv: guest, "GORACE": "atexit_sleep_ms=10"}
	p.Restart.Backoff.Min = 50 * time.Millisecond
	if more != nil {
		more(&p)
	}
	c, err := catalogue.New([]catalogue.Plugin{p})
	if err != nil {
		s.Fatal(err)
	}
	s.config.Catalogue = c
}

// transcript keeps what is written to it. It is safe for concurrent use.
type transcript struct {
	mu   sync.Mutex
	text []byte
}

func (o *transcript) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, b...)
	return len(b), nil
}

func (o *transcript) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}
