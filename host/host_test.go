//go:build unix

package host

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/plugin"
)

func TestInitialize(t *testing.T) {
	h := &Host{}
	if _, err := h.LaunchPlugin(t.Context(), []string{"true"}, nil); !errors.Is(err, ErrNotInitialized) {
		t.Errorf("launch before Initialize: %v", err)
	}
	if _, err := h.NewAdmissionPlugin([]string{"true"}); !errors.Is(err, ErrNotInitialized) {
		t.Errorf("admission plugin before Initialize: %v", err)
	}
	cfg := plugin.Config{ServiceURL: "https://packages.example"}
	if err := h.Initialize(plugin.Config{ServiceURL: "\xff"}); err == nil {
		t.Error("a service URL that is no UTF-8 was taken")
	}
	if err := h.Initialize(cfg); err != nil {
		t.Fatal(err)
	}
	if err := h.Initialize(cfg); err == nil {
		t.Error("a second Initialize was taken")
	}
	if got := h.Config(); got != cfg {
		t.Errorf("Config: %+v, want %+v", got, cfg)
	}
	h.Close(t.Context())
	h.Close(t.Context())
	if _, err := h.LaunchPlugin(t.Context(), []string{"true"}, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("launch after Close: %v", err)
	}
	if _, err := h.NewAdmissionPlugin([]string{"true"}); !errors.Is(err, ErrClosed) {
		t.Errorf("admission plugin after Close: %v", err)
	}
}

func TestLaunchRefuses(t *testing.T) {
	h := newHost(t)
	for name, spec := range map[string]Spec{
		"no command line":   {},
		"no program":        {Args: []string{"/no/such/program"}},
		"a long socket":     {Args: []string{"true"}, PluginSocket: "/" + string(make([]byte, maxPath))},
		"a bad working dir": {Args: []string{"true"}, Dir: "/no/such/dir"},
	} {
		if _, err := h.Launch(t.Context(), spec); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if left := h.Plugins(); len(left) > 0 {
		t.Errorf("plugins after failed launches: %v", left)
	}
}

func TestExit(t *testing.T) {
	h := newHost(t)
	for code, args := range [][]string{{"0"}, {"1"}, {"2"}} {
		p := launch(t, h, self("exit", args...))
		done(t, p)
		var exit *exec.ExitError
		switch err := p.Err(); {
		case code == 0 && !errors.Is(err, ErrTerminated):
			t.Errorf("exit with 0: %v", err)
		case code > 0 && (!errors.As(err, &exit) || exit.ExitCode() != code):
			t.Errorf("exit with %d: %v", code, err)
		}
		if err := p.Terminate(t.Context()); !errors.Is(err, p.Err()) {
			t.Errorf("Terminate after the end: %v, Err: %v", err, p.Err())
		}
	}
}

func TestExitBeforeTheHandshake(t *testing.T) {
	h := newHost(t)
	for range 5 {
		p := launch(t, h, self("abort"))
		done(t, p)
		var exit *exec.ExitError
		if !errors.As(p.Err(), &exit) {
			t.Errorf("error %v, want an exec.ExitError", p.Err())
		}
	}
}

func TestTerminate(t *testing.T) {
	h := newHost(t)
	p := launch(t, h, self("polite"))
	said(t, p)()
	if p.Err() != nil {
		t.Errorf("error of a running plugin: %v", p.Err())
	}
	if err := p.Terminate(t.Context()); !errors.Is(err, ErrTerminated) {
		t.Errorf("a plugin that ends when its input does: %v", err)
	}
	if err := p.Terminate(t.Context()); !errors.Is(err, ErrTerminated) {
		t.Errorf("Terminate again: %v", err)
	}
}

// TestGrace: a plugin gets SIGTERM before it is killed, however little time it has.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct{ timeout, deadline, want time.Duration }{
			{0, 0, 5 * time.Second}, {time.Minute, 0, time.Minute}, {0, time.Minute, 5 * time.Second}, {time.Minute, 3 * time.Millisecond, 3 * time.Millisecond},
		} {
			for _, foreign := range []ProtocolAdapter{nil, struct{ ProtocolAdapter }{}} {
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if test.deadline > 0 {
					ctx, cancel = context.WithTimeout(ctx, test.deadline)
				}
				grace := (&Spec{StopTimeout: test.timeout, Adapter: foreign}).grace(ctx)
				cancel()
				if grace.Stdin <= 0 || grace.Term <= 0 || grace.Stdin+grace.Term != test.want || grace.Kill != 0 {
					t.Errorf("%+v, foreign %t: %+v", test, foreign != nil, grace)
				}
			}
		}
	})
}

func TestTerminateKills(t *testing.T) {
	h := newHost(t)
	for name, how := range map[string]func(*PluginProcess) (context.Context, context.CancelFunc){
		"by the StopTimeout": func(p *PluginProcess) (context.Context, context.CancelFunc) {
			p.spec.StopTimeout = 2 * time.Millisecond
			return context.WithCancel(t.Context())
		},
		"by the context": func(*PluginProcess) (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), time.Millisecond)
		},
	} {
		for _, stopped := range []bool{false, true} {
			p := launch(t, h, self("deaf"))
			said(t, p)()
			if stopped {
				if err := syscall.Kill(p.PID(), syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := how(p)
			var exit *exec.ExitError
			if err := p.Terminate(ctx); !errors.As(err, &exit) || exit.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Errorf("%s, stopped %v: %v", name, stopped, err)
			}
			cancel()
		}
	}
}

func TestClose(t *testing.T) {
	before := descriptors(t)
	e := newEvents()
	h := &Host{Events: e.add}
	initialize(t, h)
	var all []*PluginProcess
	for _, mode := range []string{"polite", "polite", "deaf"} {
		p := launch(t, h, self(mode))
		said(t, p)()
		all = append(all, p)
	}
	if got := h.Plugins(); !slices.Equal(got, all) {
		t.Errorf("Plugins: %v, want %v", got, all)
	}
	dir := h.server.dir
	if info, err := os.Stat(dir.path); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory of the host's socket: %v, %v", info, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	h.Close(ctx)
	for _, p := range all {
		var exit *exec.ExitError
		switch err := p.Err(); p.Name() {
		case "polite":
			if !errors.Is(err, ErrTerminated) && !errors.As(err, &exit) { // the machine may be slow
				t.Errorf("polite plugin: %v", err)
			}
		case "deaf":
			if !errors.As(err, &exit) {
				t.Errorf("deaf plugin: %v", err)
			}
		}
		e.await(t, plugin.EventTerminated, func(event Event) bool { return event.PID == p.PID() && errors.Is(event.Err, p.Err()) })
	}
	if _, err := os.Stat(dir.path); !os.IsNotExist(err) {
		t.Errorf("the directory of the host's socket is still there: %v", err)
	}
	if len(h.Plugins()) > 0 {
		t.Errorf("plugins after Close: %v", h.Plugins())
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// TestLaunchAndKill is the small form of what the benchmark module does a thousand times.
func TestLaunchAndKill(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	socket := filepath.Join(dir, "p.sock")
	elsewhere := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(elsewhere, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cycle := func(linked bool) {
		spec := self("polite")
		spec.PluginSocket = socket
		p := launch(t, h, spec)
		said(t, p)()
		// They stand for what a plugin leaves that crashes while it makes its socket, and afterwards.
		private := filepath.Join(dir, ".p.sock.new")
		err := os.Mkdir(private, 0o700)
		if linked {
			err = errors.Join(os.Remove(private), os.Symlink(filepath.Dir(elsewhere), private))
		} else {
			err = errors.Join(err, os.WriteFile(filepath.Join(private, "s"), nil, 0o600))
		}
		for _, path := range []string{filepath.Join(dir, ".p.sock.lock"), filepath.Join(dir, ".p.sock.previous"), socket} {
			err = errors.Join(err, os.WriteFile(path, nil, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Launch(t.Context(), spec); err == nil {
			t.Fatal("two plugins serve at the same path")
		}
		_ = syscall.Kill(p.PID(), syscall.SIGKILL)
		done(t, p)
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Fatalf("of the plugin's socket these are still there: %v, %v", left, err)
		}
	}
	cycle(true)
	if _, err := os.Stat(elsewhere); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
	cycle(false)
	descriptorsBefore, goroutinesBefore := descriptors(t), runtime.NumGoroutine()
	for range 20 {
		cycle(false)
	}
	// The log of the last plugin, and what follows it, may be a moment behind.
	await(t, func() bool {
		return descriptors(t) <= descriptorsBefore && runtime.NumGoroutine() <= goroutinesBefore+20
	})
}

func TestHandshakeEnvironment(t *testing.T) {
	h := newHost(t)
	p := launch(t, h, Spec{Name: "env", Args: []string{"sh", "-c", `echo "$PATCHBAY_HANDSHAKE"; env | grep -c .`}, Env: []string{"PATH=/usr/bin:/bin"}})
	done(t, p)
	var lines []string
	for _, r := range p.Logs().Tail(0) {
		lines = append(lines, r.Message)
	}
	// PATH, PATCHBAY_HANDSHAKE, and what the shell adds: PWD, and in some shells _, SHLVL or OLDPWD.
	if len(lines) != 2 || lines[0] != "stdin" {
		t.Errorf("the plugin said %q", lines)
	} else if n, err := strconv.Atoi(lines[1]); err != nil || n > 6 {
		t.Errorf("the plugin has %s variables", lines[1])
	}
}

func TestEnvironment(t *testing.T) {
	got := environment([]string{"A=1", "B=2", "A=3", "PATCHBAY_HANDSHAKE=no"}, ProtocolPatchbay)
	if diff := cmp.Diff([]string{"B=2", "A=3", "PATCHBAY_HANDSHAKE=stdin"}, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if got := environment([]string{"A=1", "PATCHBAY_HANDSHAKE=stdin"}, ProtocolCIPD); !slices.Equal(got, []string{"A=1"}) {
		t.Errorf("a plugin of another protocol has the environment %q", got)
	}
	t.Setenv("PATCHBAY_TEST", "1")
	if !slices.Contains(environment(nil, ProtocolPatchbay), "PATCHBAY_TEST=1") || len(environment([]string{}, ProtocolPatchbay)) != 1 {
		t.Error("nil is not this process's environment, or an empty one is")
	}
}

func TestHolder(t *testing.T) {
	e := newEvents()
	h := &Host{Events: e.add}
	initialize(t, h)
	p := launch(t, h, self("holder"))
	done(t, p)
	var exit *exec.ExitError
	if !errors.As(p.Err(), &exit) || exit.ExitCode() != 4 {
		t.Errorf("error %v", p.Err())
	}
	pid, err := strconv.Atoi(p.Logs().Tail(0)[0].Message)
	if err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return isGone(pid) })
}

func TestLoggers(t *testing.T) {
	own, general := newRecorder(), newRecorder()
	h := &Host{PluginsContext: WithLogger(context.Background(), slog.New(general))}
	initialize(t, h)
	for want, ctx := range map[*recorder]context.Context{
		general: t.Context(),
		own:     WithLogger(t.Context(), slog.New(own)),
	} {
		p, err := h.Launch(ctx, self("stream"))
		if err != nil {
			t.Fatal(err)
		}
		record := <-want.records
		attrs := map[string]any{}
		record.Attrs(func(a slog.Attr) bool {
			attrs[a.Key] = a.Value.Any()
			return true
		})
		delete(attrs, "stream")
		if record.Message != "it failed" || record.Level != 8 {
			t.Errorf("record %v", record)
		}
		if diff := cmp.Diff(map[string]any{"n": int64(7), "s": "text", "t": true}, attrs); diff != "" {
			t.Errorf("attributes (-want +got):\n%s", diff)
		}
		if err := p.Terminate(t.Context()); !errors.Is(err, ErrTerminated) {
			t.Error(err)
		}
	}
	p, err := h.Launch(WithLogger(t.Context(), nil), self("polite"))
	if err != nil {
		t.Fatal(err)
	}
	if got := said(t, p)(); got != "up" {
		t.Errorf("without a logger the buffer has %q", got)
	}
}

func TestFlood(t *testing.T) {
	h := newHost(t)
	p := launch(t, h, self("flood"))
	await(t, func() bool { return p.logs.Stats().Bytes > 10<<20 })
	if err := p.Terminate(t.Context()); !errors.Is(err, ErrTerminated) {
		t.Error(err)
	}
	if s := p.logs.Stats(); s.Dropped == 0 {
		t.Errorf("nothing was dropped: %+v", s)
	}
}

// await waits until a condition holds that nothing can tell of.
func await(t testing.TB, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatal("it does not come true")
		}
		<-time.After(time.Millisecond)
	}
}

// descriptors counts the open descriptors of this process.
func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc here")
	}
	return len(list)
}
