//go:build linux

package failpoints

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/integration/internal/rig"
	"github.com/patchbay-dev/patchbay/integration/internal/rig/etcd"
	"github.com/patchbay-dev/patchbay/internal/catalogue"
	"github.com/patchbay-dev/patchbay/internal/daemon"
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

// typeOf returns the type of a plugin. That of the fellow is always accepted.
func typeOf(name string) string {
	if name == fellow {
		return "FellowPlugin"
	}
	return ptype
}

// scene is a daemon in a process of its own, with a plugin that does not notice that a point fails, in a directory of its own.
type scene struct {
	*testing.T

	setup    Setup
	dispense string
	client   *client.Client
	child    *child
	log      *transcript

	runs    bool // the daemon does
	armed   []Arm
	plugins map[string]*rig.Plugin
	// services returns what a plugin serves besides; nil for nothing.
	services func(name, version string) func(*grpc.Server)
	// instances are those that have to be the same after a restart.
	instances map[string]string
	err       error // what play wants to have looked at

	// other is what happens besides; nil for nothing. ended is closed when it has, and is nil before it has begun.
	other    *other
	ended    chan struct{}
	etcd     *etcd.Process
	prepared bool
	// masked are points that the other fault kept from being reached.
	masked []string
}

// Arm is a point that fails, and how, as gofail says it.
type Arm struct{ Point, Terms string }

// once has a point fail the first time that it is reached, with a text that says so.
func once(point string) Arm { return times(point, 1) }

// times has a point fail the first times that it is reached.
func times(point string, n int) Arm {
	return Arm{point, fmt.Sprintf("%d*return(%q)", n, injected+point)}
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
	s := &scene{T: t, log: &transcript{}, plugins: map[string]*rig.Plugin{}, instances: map[string]string{}}
	s.setup = Setup{Dir: dir, Handlers: map[string]string{ptype: daemon.HandlerAccept}}
	s.dispense = s.path("dispense")
	s.client = client.New(s.path("control.sock"))
	t.Cleanup(s.client.Close)
	if s.child, err = newChild(s.log); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.settle()
		if t.Failed() && s.runs {
			t.Logf("events: %+v", s.events())
		}
		if err := errors.Join(s.stop(), s.child.close()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("log of the daemon:\n%s", s.log)
		}
	})
	return s
}

func (s *scene) path(name string) string { return s.setup.path(name) }

// ask asks the process of the daemon for something, which takes no longer than patience.
func (s *scene) ask(method string, argument any) error {
	s.Helper()
	late := time.AfterFunc(patience, func() {
		s.Errorf("%s takes too long", method)
		_ = s.child.cmd.Process.Kill()
	})
	defer late.Stop()
	return s.child.ask(method, argument)
}

// configure tells it how the daemon is to be configured.
func (s *scene) configure() {
	s.Helper()
	if err := s.ask("Configure", s.setup); err != nil {
		s.Fatal(err)
	}
}

// prepare makes the scene one to which the other fault can happen.
func (s *scene) prepare() {
	s.Helper()
	if s.other != nil && s.other.prepare != nil && !s.prepared {
		s.prepared = true
		s.other.prepare(s)
	}
}

// tryStart starts the daemon; the error is that with which it ended at once.
func (s *scene) tryStart() error {
	s.Helper()
	s.prepare()
	s.configure()
	err := s.ask("Start", None{})
	s.runs = err == nil
	return err
}

func (s *scene) start() {
	s.Helper()
	err := s.tryStart()
	if err != nil && s.settle() {
		err = s.tryStart()
	}
	if err != nil {
		s.Fatalf("the daemon does not start: %v", err)
	}
}

// stop ends the daemon, if one runs.
func (s *scene) stop() error {
	s.Helper()
	s.runs = false
	s.client.Close()
	return s.ask("Stop", None{})
}

// tryReload has the daemon read its configuration.
func (s *scene) tryReload() error {
	s.Helper()
	s.configure()
	_, err := s.client.Reload(s.Context())
	return err
}

func (s *scene) reload() {
	s.Helper()
	err := s.tryReload()
	if err != nil && s.settle() {
		err = s.tryReload()
	}
	if err != nil {
		s.Error(err)
	}
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
		if err := s.ask("Enable", a); err != nil {
			s.Fatalf("%s: %v", a.Point, err)
		}
	}
	if s.other == nil {
		return
	}
	s.prepare()
	end, err := s.other.begin(s)
	if err != nil {
		s.Fatalf("%s: %v", s.other.name, err)
	}
	s.ended = make(chan struct{})
	go func() {
		defer close(s.ended)
		<-time.After(lasts)
		if err := end(); err != nil {
			s.Errorf("the end of %s: %v", s.other.name, err)
		}
	}()
}

// settle waits until what happens besides has ended, and says whether there is such a thing.
func (s *scene) settle() bool {
	if s.ended == nil {
		return false
	}
	<-s.ended
	return true
}

// disarm ends that, and checks that each point has failed, unless something else has before.
func (s *scene) disarm() {
	s.Helper()
	pair := s.settle()
	for _, a := range s.armed {
		var count int
		err := s.child.Call("Child.Reached", a.Point, &count)
		switch {
		case err == nil && count == 0 && pair:
			s.masked = append(s.masked, a.Point)
		case err != nil || count == 0:
			s.Errorf("point %s was not reached: %d, %v", a.Point, count, err)
		}
		if err := s.ask("Disable", a.Point); err != nil {
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
	path := filepath.Join(s.path("plugins"), name+".sock")
	p, err := rig.Serve(typeOf(name), name, version, path, more)
	if err != nil && s.settle() {
		p, err = rig.Serve(typeOf(name), name, version, path, more)
	}
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

func (s *scene) wait(name string, goal client.Goal) *patchbayv1.Plugin {
	s.Helper()
	s.settle()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	p, err := s.client.Wait(ctx, typeOf(name), name, goal)
	if err != nil {
		s.Error(err)
	}
	return p
}

// call calls a plugin through its stable socket.
func (s *scene) call(name string) error {
	conn, err := grpc.NewClient("unix:"+filepath.Join(s.dispense, typeOf(name), name+".sock"),
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

// await waits until something is so. To look costs the daemon something: that is a fifth of the time at most.
func (s *scene) await(what string, holds func() bool) {
	s.Helper()
	end, began := time.Now().Add(patience), time.Now()
	for ; !holds(); began = time.Now() {
		if time.Now().After(end) {
			s.Fatalf("it is not so: %s", what)
		}
		<-time.After(max(10*time.Millisecond, 4*time.Since(began)))
	}
}

func (s *scene) list() *patchbayv1.ListPluginsResponse { s.Helper(); return rig.List(s, s.client) }

func (s *scene) lists(name string) bool {
	s.Helper()
	return slices.ContainsFunc(s.list().Plugins, func(p *patchbayv1.Plugin) bool { return p.Name == name })
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
	s.setup.Launched = append(s.setup.Launched, p)
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
