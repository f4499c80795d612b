package launcher_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestSet: what is new is started, what goes is ended, what changed is replaced, and what did not is left alone.
func TestSet(t *testing.T) {
	f := newFixture(t)
	stays, goes, changes, waits := self("serve"), self("serve"), self("serve"), manual(self("sleep"))
	stays.Name, goes.Name, changes.Name = "stays", "goes", "changes"
	f.set(stays, goes, changes, waits)
	before := map[string]plugin.LaunchStatus{}
	for _, name := range []string{"stays", "goes", "changes"} {
		before[name] = f.in(name, plugin.StateRunning)
	}
	if s := f.status("sleep"); s.State != plugin.StateStopped || len(f.told("sleep")) != 0 {
		t.Errorf("the manual one is %+v", s)
	}
	stays.LogRate = 7
	changes.Env = append(changes.Env, "NEW=1")
	f.set(stays, changes, waits)
	f.until("the change", func() bool {
		s := f.status("changes")
		return s.State == plugin.StateRunning && s.PID != before["changes"].PID
	})
	f.until("the end of the others", func() bool { return !alive(before["goes"].PID) && !alive(before["changes"].PID) })
	if s := f.status("stays"); s.PID != before["stays"].PID {
		t.Errorf("what did not change has process %d and had %d", s.PID, before["stays"].PID)
	}
	if err := f.Start("goes"); !errors.Is(err, launcher.ErrUnknown) {
		t.Errorf("what went is started: %v", err)
	}
	if s := f.Plugins(); len(s) != 3 {
		t.Errorf("%+v", s)
	}
	f.until("its event", func() bool { return slices.Contains(f.told("goes"), plugin.EventStopped) })
	f.until("its socket's end", func() bool { return len(f.sockets()) == 2 })
}

// TestSetComesBack: what goes and comes back while it ends is one plugin, of which one process runs.
func TestSetComesBack(t *testing.T) {
	f := newFixture(t)
	p := self("deaf")
	p.StopTimeout = 200 * time.Millisecond
	f.set(p)
	first := f.in("deaf", plugin.StateRunning)
	f.set()
	f.set(p)
	f.until("another process", func() bool {
		s := f.status("deaf")
		return s.PID != 0 && s.PID != first.PID
	})
	if alive(first.PID) {
		t.Errorf("process %d runs beside its successor", first.PID)
	}
}

// TestInvalid: what could never be launched is refused, and nothing changes then.
func TestInvalid(t *testing.T) {
	f := newFixture(t)
	kept := manual(self("sleep"))
	f.set(kept)
	for name, spoil := range map[string]func(*launcher.Plugin){
		"name":        func(p *launcher.Plugin) { p.Name = "-x" },
		"no command":  func(p *launcher.Plugin) { p.Args = nil },
		"StateDir":    func(p *launcher.Plugin) { p.Survive = true },
		"twice":       func(p *launcher.Plugin) { p.Name = kept.Name },
		"must serve":  func(p *launcher.Plugin) { p.Protocol = foreign{} },
		"itself sets": func(p *launcher.Plugin) { p.Tag = "mine" },
	} {
		bad := self("sleep")
		bad.Name = "bad"
		spoil(&bad)
		if err := f.Set([]launcher.Plugin{kept, bad}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s := f.Plugins(); len(s) != 1 || s[0].Name != kept.Name {
		t.Errorf("after refusals: %+v", s)
	}
}

type foreign struct{}

func (foreign) Launch(context.Context, *host.Host, host.Spec) (*host.PluginProcess, error) {
	return nil, errors.ErrUnsupported
}

// TestStartAndStop: each of them twice, and what follows each.
func TestStartAndStop(t *testing.T) {
	f := newFixture(t)
	f.set(manual(self("serve")))
	f.must(f.Stop("serve")) // it does not run
	f.must(f.Start("serve"))
	first := f.in("serve", plugin.StateRunning)
	f.must(f.Start("serve"))
	if s := f.status("serve"); s.PID != first.PID {
		t.Errorf("a second start has process %d, the first had %d", s.PID, first.PID)
	}
	for range 2 {
		f.must(f.Stop("serve"))
		if s := f.status("serve"); s.State != plugin.StateStopped || s.PID != 0 || alive(first.PID) || len(f.sockets()) != 0 {
			t.Errorf("after its stop it is %+v with %v", s, f.sockets())
		}
	}
	f.must(f.Restart(t.Context(), "serve"))
	if s := f.status("serve"); s.PID == 0 || s.PID == first.PID {
		t.Errorf("after the restart it is %+v", s)
	}
	f.in("serve", plugin.StateRunning)
	want := []plugin.EventKind{plugin.EventReady, plugin.EventStopped, plugin.EventReady}
	if got := f.told("serve"); !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}

// TestReplace: the old process goes when the new one is registered, and not before.
func TestReplace(t *testing.T) {
	f := newFixture(t)
	f.set(self("serve"))
	old := f.in("serve", plugin.StateRunning)
	asked := make(chan string, 1)
	let := make(chan struct{})
	f.registered(func(ctx context.Context, socket string, refused func(error)) error {
		asked <- socket
		<-let
		return awaitSocket(ctx, socket, refused)
	})
	restarted := aside(func() error { return f.Restart(t.Context(), "serve") })
	socket := take(t, "a new process", asked)
	if s := f.status("serve"); s.PID != old.PID || s.State != plugin.StateRunning || !alive(old.PID) || socket == old.Socket {
		t.Errorf("before the new one is registered, at %s, it is %+v", socket, s)
	}
	close(let)
	f.must(take(t, "the restart", restarted))
	if s := f.status("serve"); s.PID == old.PID || s.Socket != socket || alive(old.PID) {
		t.Errorf("after the restart it is %+v", s)
	}
	if !slices.Contains(f.told("serve"), plugin.EventReplaced) {
		t.Errorf("events %v", f.told("serve"))
	}
}

// TestReplacementThatFails: refused, or not waited for any more, it goes and the old one goes on.
func TestReplacementThatFails(t *testing.T) {
	f := newFixture(t)
	f.set(self("serve"))
	old := f.in("serve", plugin.StateRunning)
	f.registered(func(ctx context.Context, _ string, refused func(error)) error {
		refused(errors.New("no taste"))
		<-ctx.Done()
		return ctx.Err()
	})
	f.failsToReplace(t.Context(), old, "no taste")
	asked := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	f.registered(never(asked))
	f.failsToReplace(ctx, old, "canceled")
}

// TestReplacementTooLate: a replacement that is not ready in time, which on a busy machine may not even run by then, ends.
func TestReplacementTooLate(t *testing.T) {
	f := newFixture(t)
	p := self("serve")
	f.set(p)
	old := f.in("serve", plugin.StateRunning)
	f.registered(never(make(chan string, 9)))
	p.StartTimeout = 100 * time.Millisecond
	f.set(p)
	if err := f.AwaitReplacement(t.Context(), "serve"); !errors.Is(err, plugin.ErrReplacement) {
		t.Errorf("got %v", err)
	}
	f.failsToReplace(t.Context(), old, "not registered within its startTimeout, 100ms")
}

// failsToReplace restarts a plugin, which must fail in a certain way and leave the old process as it was.
func (f *fixture) failsToReplace(ctx context.Context, old plugin.LaunchStatus, how string) {
	f.t.Helper()
	err := f.Restart(ctx, old.Name)
	if !errors.Is(err, plugin.ErrReplacement) || !strings.Contains(err.Error(), how) {
		f.t.Errorf("%s: %v", how, err)
	}
	if s := f.status(old.Name); s.PID != old.PID || s.State != plugin.StateRunning || !strings.Contains(s.ReplacementError, how) {
		f.t.Errorf("%s: it is %+v", how, s)
	}
	f.until("the end of the replacement", func() bool { return len(f.host.Plugins()) == 1 })
}

// TestSocketRemoved: another process takes the place of one that nobody finds any more.
func TestSocketRemoved(t *testing.T) {
	f := newFixture(t)
	f.set(self("serve"))
	old := f.in("serve", plugin.StateRunning)
	f.SocketRemoved(filepath.Join(f.dir, "another"))
	f.must(os.RemoveAll(f.dir))
	f.SocketRemoved(old.Socket)
	f.SocketRemoved(old.Socket)
	f.until("another process", func() bool {
		s := f.status("serve")
		return s.State == plugin.StateRunning && s.PID != old.PID
	})
	f.until("the end of the old one", func() bool { return !alive(old.PID) && len(f.sockets()) == 1 })
}

// TestGivenUp: what ends again and again is left alone with its last error, and each end is told. A start begins again.
func TestGivenUp(t *testing.T) {
	f := newFixture(t)
	f.set(self("crash"))
	s := f.in("crash", plugin.StateFailed)
	if want := "given up after 2 restarts within 10m0s: exit status 3; last stderr line: the flux is empty"; s.LastError != want || s.Restarts != 2 {
		t.Errorf("it is %+v, want the error %q", s, want)
	}
	want := []plugin.EventKind{plugin.EventBackoff, plugin.EventBackoff, plugin.EventFailed}
	ends := func() []plugin.EventKind { // on a busy machine it may have run for so long that it was ready
		return slices.DeleteFunc(f.told("crash"), func(k plugin.EventKind) bool { return k == plugin.EventReady })
	}
	if got := ends(); !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	f.must(f.Start("crash"))
	f.until("another row", func() bool { return len(ends()) == 6 })
	f.in("crash", plugin.StateFailed)
	f.must(f.Stop("crash"))
	if s := f.status("crash"); s.State != plugin.StateStopped {
		t.Errorf("after its stop it is %+v", s)
	}
}

// TestCrashesLeaveNothing: neither sockets nor processes, however often one that serves is killed.
func TestCrashesLeaveNothing(t *testing.T) {
	f := newFixture(t)
	p := self("die")
	const crashes = 100
	p.Restart.Limit = crashes
	f.set(p)
	if s := f.in("die", plugin.StateFailed); s.Restarts != crashes || !strings.Contains(s.LastError, "signal: killed") {
		t.Errorf("it is %+v", s)
	}
	if left := f.sockets(); len(left) != 0 || len(f.host.Plugins()) != 0 {
		t.Errorf("left are %v and %d processes", left, len(f.host.Plugins()))
	}
}

// TestStartInPause: it does not wait for the end of the pause, and a stop ends that too.
func TestStartInPause(t *testing.T) {
	f := newFixture(t)
	p := self("crash")
	p.Restart.Backoff.Min, p.Restart.Backoff.Max, p.Restart.Limit = time.Hour, time.Hour, 1
	f.set(p)
	for range 3 { // each start begins the count anew
		s := f.in("crash", plugin.StateBackoff)
		if s.NextStart.Before(time.Now().Add(time.Minute)) || s.PID != 0 {
			t.Errorf("in its pause it is %+v", s)
		}
		f.must(f.Start("crash"))
	}
	f.in("crash", plugin.StateBackoff)
	f.must(f.Stop("crash"))
	if s := f.status("crash"); s.State != plugin.StateStopped || !s.NextStart.IsZero() {
		t.Errorf("after its stop it is %+v", s)
	}
}

// TestWrongProgram: whoever sets it is told, others are launched, and it runs when it is there. Nothing is restarted until then.
func TestWrongProgram(t *testing.T) {
	f := newFixture(t)
	p := self("sleep")
	p.Args = []string{filepath.Join(t.TempDir(), "program")}
	err := f.Set([]launcher.Plugin{p, self("serve")})
	if !errors.Is(err, launcher.ErrProgram) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	f.in("serve", plugin.StateRunning)
	if s := f.in("sleep", plugin.StateBlocked); s.Restarts != 0 || !s.NextStart.IsZero() || !strings.Contains(s.LastError, "install it") {
		t.Errorf("it is %+v", s)
	}
	want := []plugin.EventKind{plugin.EventFailed}
	if got := f.told("sleep"); !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	f.must(os.Symlink(os.Args[0], p.Args[0]))
	f.in("sleep", plugin.StateRunning)
}

// TestInterpreterGoesAway: Set names a plugin whose program has not changed and can no longer be executed.
func TestInterpreterGoesAway(t *testing.T) {
	f := newFixture(t)
	p, dir := self("serve"), t.TempDir()
	script, interpreter := filepath.Join(dir, "script"), filepath.Join(dir, "interpreter")
	f.must(os.Symlink("/bin/sh", interpreter))
	f.must(os.WriteFile(script, []byte("#!"+interpreter+"\nsleep 100\n"), 0o700))
	p.Args = []string{script}
	f.must(f.Set([]launcher.Plugin{p}))
	f.must(os.Remove(interpreter))
	if err := f.Set([]launcher.Plugin{p}); !errors.Is(err, launcher.ErrProgram) {
		t.Errorf("got %v", err)
	}
}

// TestWrongDigest: a program with another digest is started when it is replaced by the right one.
func TestWrongDigest(t *testing.T) {
	f := newFixture(t)
	right, err := os.ReadFile(os.Args[0])
	f.must(err)
	p := self("sleep")
	p.Args = []string{filepath.Join(t.TempDir(), "program")}
	p.SHA256 = fmt.Sprintf("%x", sha256.Sum256(right))
	f.must(os.WriteFile(p.Args[0], []byte("#!/bin/sh\n"), 0o700))
	f.set(p)
	if s := f.in("sleep", plugin.StateBlocked); s.Restarts != 0 || !strings.Contains(s.LastError, "another digest") {
		t.Errorf("it is %+v", s)
	}
	f.must(os.WriteFile(p.Args[0]+".new", right, 0o700))
	f.must(os.Rename(p.Args[0]+".new", p.Args[0]))
	f.in("sleep", plugin.StateRunning)
	if got := f.told("sleep"); !slices.Equal(got, []plugin.EventKind{plugin.EventFailed, plugin.EventReady}) {
		t.Errorf("events %v", got)
	}
}

// TestNeverReady: a process that is not ready within the StartTimeout is ended as a failure, and counts as one however long it has run.
func TestNeverReady(t *testing.T) {
	f := newFixture(t)
	p := self("serve")
	p.StartTimeout, p.Restart.Window = 100*time.Millisecond, time.Millisecond
	f.registered(never(make(chan string, 9)))
	f.set(p)
	s := f.in("serve", plugin.StateFailed)
	want := "given up after 3 starts in a row, none of which became ready: it was not registered within its startTimeout, 100ms"
	if s.Restarts != 2 || s.LastError != want || len(f.host.Plugins()) != 0 {
		t.Errorf("it is %+v, want the error %q; %d processes are left", s, want, len(f.host.Plugins()))
	}
}

// TestRecreationTooLate: a restart that has failed leaves no process that becomes ready after all.
func TestRecreationTooLate(t *testing.T) {
	f := newFixture(t)
	p := self("serve")
	p.Upgrade, p.Restart.Limit = plugin.UpgradeRecreate, 1
	asked := make(chan string, 9)
	f.set(p)
	old := f.in("serve", plugin.StateRunning)
	f.registered(never(asked))
	p.StartTimeout = 100 * time.Millisecond
	f.set(p)
	err := f.AwaitReplacement(t.Context(), "serve")
	if !errors.Is(err, plugin.ErrReplacement) || !strings.Contains(err.Error(), "restarting in 1ms") || alive(old.PID) {
		t.Errorf("the restart ended with %v; the old one is alive: %t", err, alive(old.PID))
	}
	if len(asked) > 0 { // a busy machine may not have come so far
		if _, err := os.Lstat(<-asked); err == nil {
			t.Error("the process that was late is still there")
		}
	}
	f.in("serve", plugin.StateFailed)
}

// TestNeverRan: of a plugin that has no process nobody says that it keeps running.
func TestNeverRan(t *testing.T) {
	f := newFixture(t)
	p := self("serve")
	p.Dir, p.Restart.Backoff.Min, p.Restart.Backoff.Max = filepath.Join(t.TempDir(), "missing"), time.Hour, time.Hour
	f.set(p)
	f.in("serve", plugin.StateBackoff)
	err := f.Restart(t.Context(), "serve")
	if !errors.Is(err, plugin.ErrReplacement) || strings.Contains(err.Error(), "keeps running") {
		t.Errorf("the restart ended with %v", err)
	}
	for _, e := range f.all() {
		if strings.Contains(e.Message, "keeps running") {
			t.Errorf("the event %+v", e)
		}
	}
}

// TestAwaitReplacement: whoever changes a plugin can learn that the change has failed.
func TestAwaitReplacement(t *testing.T) {
	f := newFixture(t)
	p := self("serve")
	f.set(p)
	f.must(f.AwaitReplacement(t.Context(), "serve")) // nothing ran
	old := f.in("serve", plugin.StateRunning)
	bad := self("crash")
	bad.Name, bad.NoSocket = p.Name, false
	f.set(bad)
	if err := f.AwaitReplacement(t.Context(), "serve"); !errors.Is(err, plugin.ErrReplacement) || !strings.Contains(err.Error(), "flux") {
		t.Errorf("got %v", err)
	}
	if s := f.status("serve"); s.PID != old.PID || s.ReplacementError == "" {
		t.Errorf("it is %+v", s)
	}
	f.set(p)
	f.must(f.AwaitReplacement(t.Context(), "serve"))
	if s := f.status("serve"); s.ReplacementError != "" || s.PID == old.PID {
		t.Errorf("it is %+v", s)
	}
}

// TestMadeAndNotTaken: what a host left that was killed before it had started a plugin is removed with the first configuration, and no more.
func TestMadeAndNotTaken(t *testing.T) {
	f := newFixture(t)
	left := []string{".serve.7.sock.made", ".other.7.sock.made", "serve.7.sock.made", ".serve.8.sock"}
	for _, name := range left {
		f.must(os.WriteFile(filepath.Join(f.dir, name), nil, 0o600))
	}
	f.set(manual(self("serve")))
	var there []string
	for _, name := range left {
		if _, err := os.Lstat(filepath.Join(f.dir, name)); err == nil {
			there = append(there, name)
		}
	}
	if !slices.Equal(there, left[1:]) {
		t.Errorf("%q are left, want %q", there, left[1:])
	}
}

// TestBusyProgram: a program that is still open for writing is started when it is closed. Whoever starts it waits, and nothing is counted.
func TestBusyProgram(t *testing.T) {
	f := newFixture(t)
	p := self("sleep")
	p.Args = []string{filepath.Join(t.TempDir(), "program")}
	p.Restart.Limit = 1
	content, err := os.ReadFile(os.Args[0])
	f.must(err)
	f.must(os.WriteFile(p.Args[0], content, 0o755))
	installing, err := os.OpenFile(p.Args[0], os.O_WRONLY, 0)
	f.must(err)
	f.set(manual(p))
	started := aside(func() error { return f.Start("sleep") })
	f.until("the program is busy", func() bool { return len(f.told("sleep")) > 0 })
	if got := f.told("sleep"); !slices.Equal(got, []plugin.EventKind{plugin.EventBusy}) {
		t.Errorf("events %v, want %v", got, plugin.EventBusy)
	}
	f.must(installing.Close())
	f.must(take(t, "the start", started))
	if s := f.in("sleep", plugin.StateRunning); s.Restarts != 0 {
		t.Errorf("it is %+v, want no restart", s)
	}
}
