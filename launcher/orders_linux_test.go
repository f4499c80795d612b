package launcher_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// slow has the check of a program block until its context ends. It tells of each.
func slow(checks chan<- struct{}) func(*fixture, *launcher.Config) {
	return func(_ *fixture, cfg *launcher.Config) {
		cfg.Admit = func(ctx context.Context, _ plugin.Pin) error {
			checks <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}
	}
}

// TestStartTwiceAtOnce: whoever comes during a start waits for the same process.
func TestStartTwiceAtOnce(t *testing.T) {
	checks, let := make(chan struct{}, 9), make(chan struct{})
	f := newFixture(t, func(_ *fixture, cfg *launcher.Config) {
		cfg.Admit = func(context.Context, plugin.Pin) error {
			checks <- struct{}{}
			<-let
			return nil
		}
	})
	f.set(manual(self("sleep")))
	var started []<-chan error
	for range 4 {
		started = append(started, aside(func() error { return f.Start("sleep") }))
	}
	take(t, "the start", checks)
	close(let)
	for _, outcome := range started {
		f.must(take(t, "the start", outcome))
	}
	if n := len(f.host.Plugins()); n != 1 || len(checks) != 0 {
		t.Errorf("%d processes run, and %d more were begun", n, len(checks))
	}
}

// TestStartTimeoutOfACheck: the StartTimeout bounds a check, but not the copying of the program before it, which takes longer on a slow
// machine.
func TestStartTimeoutOfACheck(t *testing.T) {
	f := newFixture(t, func(_ *fixture, cfg *launcher.Config) {
		cfg.Admit = func(ctx context.Context, pin plugin.Pin) error {
			if pin.PackageName == "hangs" {
				<-ctx.Done()
			}
			return ctx.Err()
		}
	})
	p := self("sleep")
	p.StartTimeout, p.Restart.Limit = 4*time.Millisecond, 30 // the test binary has tens of megabytes
	hangs := manual(p)
	hangs.Name = "hangs"
	f.set(p, hangs)
	f.in("sleep", plugin.StateRunning)
	if err := f.Start("hangs"); err == nil || !strings.Contains(err.Error(), "not started within its startTimeout, 4ms") {
		t.Errorf("a check that blocks: %v", err)
	}
}

// TestStopWhileStarting: it cuts the start short, which is answered too.
func TestStopWhileStarting(t *testing.T) {
	checks := make(chan struct{}, 1)
	f := newFixture(t, slow(checks))
	f.set(manual(self("sleep")))
	started := aside(func() error { return f.Start("sleep") })
	take(t, "the start", checks)
	f.must(f.Stop("sleep"))
	if err := take(t, "the end of the start", started); err == nil {
		t.Error("a start that was cut short has no error")
	}
	if s := f.status("sleep"); s.State != plugin.StateStopped || s.PID != 0 {
		t.Errorf("it is %+v", s)
	}
}

// TestCloseWhileStarting: it does not wait for the start.
func TestCloseWhileStarting(t *testing.T) {
	checks := make(chan struct{}, 1)
	f := newFixture(t, slow(checks))
	f.set(manual(self("sleep")))
	started := aside(func() error { return f.Start("sleep") })
	take(t, "the start", checks)
	f.Close()
	if err := take(t, "the end of the start", started); err == nil {
		t.Error("the start has no error")
	}
	if err := f.Start("sleep"); !errors.Is(err, launcher.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := f.Set(nil); !errors.Is(err, launcher.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestStopWhileReplacing: both processes end, and whoever waits for the new one is told.
func TestStopWhileReplacing(t *testing.T) {
	f := newFixture(t)
	f.set(self("serve"))
	f.in("serve", plugin.StateRunning)
	asked := make(chan string, 1)
	f.registered(never(asked))
	restarted := aside(func() error { return f.Restart(t.Context(), "serve") })
	take(t, "the new process", asked)
	f.must(f.Stop("serve"))
	if err := take(t, "the end of the restart", restarted); err == nil || errors.Is(err, plugin.ErrReplacement) {
		t.Errorf("the restart: %v", err)
	}
	if s := f.status("serve"); s.State != plugin.StateStopped || len(f.host.Plugins()) != 0 {
		t.Errorf("it is %+v, and %d processes are left", s, len(f.host.Plugins()))
	}
}

// TestDeaf: what heeds nothing is killed when its time is over, whatever else is asked for meanwhile.
func TestDeaf(t *testing.T) {
	f := newFixture(t)
	p := self("deaf")
	p.StopTimeout = 200 * time.Millisecond
	f.set(p)
	first := f.in("deaf", plugin.StateRunning)
	f.until("its word", func() bool { return f.says("deaf", "deaf") })
	stopped := aside(func() error { return f.Stop("deaf") })
	f.in("deaf", plugin.StateStopping)
	f.must(f.Start("deaf")) // it waits for the end of the first
	f.must(take(t, "the stop", stopped))
	if s := f.status("deaf"); s.PID == 0 || alive(first.PID) {
		t.Errorf("it is %+v, and the first process is alive: %t", s, alive(first.PID))
	}
}

func (f *fixture) says(name, word string) bool {
	log, err := f.Log(name)
	f.must(err)
	return slices.ContainsFunc(log.Tail(0), func(r plugin.LogRecord) bool { return r.Message == word })
}

// TestManyAtOnce: many ask at once for whatever there is. Each is answered, and in the end one process runs, or none.
func TestManyAtOnce(t *testing.T) {
	f := newFixture(t)
	one, other := self("serve"), self("serve")
	other.Env = append(other.Env, "OTHER=1")
	f.set(one)
	var asking sync.WaitGroup
	for i := range 8 {
		asking.Go(func() {
			for j := range 4 {
				switch (i + j) % 5 {
				case 0:
					_ = f.Start("serve")
				case 1:
					_ = f.Stop("serve")
				case 2:
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*10*time.Millisecond)
					_ = f.Restart(ctx, "serve")
					cancel()
				case 3:
					_ = f.Set([]launcher.Plugin{[]launcher.Plugin{one, other}[j%2]})
				case 4:
					f.SocketRemoved(f.status("serve").Socket)
				}
			}
		})
	}
	take(t, "all answers", aside(func() error { asking.Wait(); return nil }))
	f.must(f.Restart(t.Context(), "serve"))
	f.in("serve", plugin.StateRunning)
	f.until("the end of all others", func() bool { return len(f.host.Plugins()) == 1 && len(f.sockets()) == 1 })
	f.must(f.Stop("serve"))
	if left := f.host.Plugins(); len(left) != 0 {
		t.Errorf("%d processes are left", len(left))
	}
}

// TestNobodyWaitsForSurvivors: while the first Set waits for one that says nothing, all else goes on, above all what the reconciler tells
// with its lock.
func TestNobodyWaitsForSurvivors(t *testing.T) {
	state := t.TempDir()
	f := newFixture(t, surviving(state))
	silent, err := net.Listen("unix", filepath.Join(state, "silent.sock"))
	f.must(err)
	defer silent.Close()
	set := aside(func() error { return f.Set([]launcher.Plugin{manual(self("sleep"))}) })
	conn, err := silent.Accept()
	f.must(err)
	defer conn.Close()
	f.SocketRemoved("/nowhere")
	f.Plugins()
	_ = f.Start("sleep")
	f.must(conn.SetReadDeadline(time.Now().Add(tick)))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("they have waited until the launcher had enough of the survivor: %v", err)
	}
	f.must(errors.Join(conn.Close(), silent.Close()))
	f.must(take(t, "Set", set))
	f.must(f.Start("sleep"))
	if got := f.told(""); !slices.Equal(got[:1], []plugin.EventKind{plugin.EventFailed}) {
		t.Errorf("events %v", got)
	}
}

// TestSurvivors: a later launcher has the process that went on, if it is of the plugin as it is then; and ends it if nobody wants it.
func TestSurvivors(t *testing.T) {
	state, dir := t.TempDir(), t.TempDir()
	p := self("serve")
	p.Survive = true
	there := func(f *fixture, cfg *launcher.Config) { f.dir, cfg.Dir = dir, dir }
	t.Cleanup(func() { // whatever happened, nothing is left
		f := &fixture{t: t}
		last := newSurvivorHost(t, state)
		found, _ := last.Adopt(context.Background())
		for _, left := range found {
			f.t.Errorf("process %d is left", left.PID())
			_ = left.Terminate(context.Background())
		}
		last.Close(context.Background())
	})
	f := newFixture(t, surviving(state), there)
	life := func(plugins ...launcher.Plugin) plugin.LaunchStatus {
		t.Helper()
		h := newSurvivorHost(t, state)
		l := launcher.New(launcher.Config{Host: h, Dir: dir, Registrations: registrations(awaitSocket)})
		defer h.Close(context.Background())
		defer l.Close()
		f.Launcher = l
		f.set(plugins...)
		if len(plugins) == 0 {
			return plugin.LaunchStatus{}
		}
		return f.in("serve", plugin.StateRunning)
	}
	first := life(p)
	if second := life(p); second.PID != first.PID || second.Socket != first.Socket {
		t.Errorf("a later launcher has %+v, the first had %+v", second, first)
	}
	p.Restart.Limit = 5 // which the process does not notice
	if third := life(p); third.PID != first.PID {
		t.Errorf("another policy replaced process %d by %d", first.PID, third.PID)
	}
	p.Args = append(slices.Clone(p.Args), "changed")
	h := newSurvivorHost(t, state)
	f.Launcher = launcher.New(launcher.Config{Host: h, Dir: dir, Registrations: registrations(awaitSocket)})
	f.set(p)
	f.until("its replacement", func() bool {
		s := f.status("serve")
		return s.State == plugin.StateRunning && s.PID != first.PID && !alive(first.PID)
	})
	changed := f.status("serve")
	f.Close()
	h.Close(context.Background())
	if !alive(changed.PID) {
		t.Errorf("what survives has ended with its launcher")
	}
	life()
	if alive(changed.PID) {
		t.Errorf("process %d goes on, and nobody wants it", changed.PID)
	}
	if names := strings.Join(f.sockets(), " "); names != "" {
		t.Errorf("left is %s", names)
	}
}

// TestSecondLauncher reproduces PAINS 193: a second launcher on the same directory gets an error and disturbs no plugin of the first one,
// and may launch plugins when the first one is closed.
func TestSecondLauncher(t *testing.T) {
	f := newFixture(t)
	h := &host.Host{}
	if err := h.Initialize(plugin.Config{}); err != nil {
		t.Fatal(err)
	}
	second := launcher.New(launcher.Config{Host: h, Dir: f.dir, Registrations: registrations(awaitSocket)})
	t.Cleanup(func() {
		second.Close()
		h.Close(context.Background())
	})
	f.set(self("serve"))
	f.in("serve", plugin.StateRunning)
	sockets := f.sockets()
	if err := second.Set([]launcher.Plugin{self("serve")}); !errors.Is(err, sock.ErrInUse) {
		t.Errorf("the second launcher gets %v, want %v", err, sock.ErrInUse)
	}
	if plugins := second.Plugins(); len(plugins) > 0 {
		t.Errorf("it launches %+v", plugins)
	}
	for _, path := range sockets {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("a socket of the first launcher: %v", err)
		}
	}
	f.Close()
	if err := second.Set([]launcher.Plugin{self("serve")}); err != nil {
		t.Errorf("when the first one is closed, the second one gets %v", err)
	}
}
