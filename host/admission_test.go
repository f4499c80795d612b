//go:build unix

package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/plugin"
)

// newAdmission returns a handle to an admission plugin of the tests, on a host of its own.
func newAdmission(t testing.TB, timeout time.Duration, args ...string) (*AdmissionPlugin, *events) {
	t.Helper()
	return newAdmissionOf(t, "admission", timeout, args...)
}

func newAdmissionOf(t testing.TB, mode string, timeout time.Duration, args ...string) (*AdmissionPlugin, *events) {
	t.Helper()
	t.Setenv(modeEnv, mode) // the plugin inherits it
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	e := newEvents()
	h := &Host{Events: e.add, AdmissionTimeout: timeout}
	initialize(t, h)
	a := NewAdmissionPlugin(t.Context(), h, append([]string{os.Args[0]}, args...))
	t.Cleanup(func() { a.Close(context.Background()) })
	return a, e
}

func pin(name string) plugin.Pin { return plugin.Pin{PackageName: name, InstanceID: "instance"} }

// ask makes a check and waits for its result.
func ask(t testing.TB, a *AdmissionPlugin, name string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := a.CheckAdmission(pin(name)).Wait(ctx)
	if ctx.Err() != nil {
		t.Fatalf("no answer for %s", name)
	}
	return err
}

func TestAdmission(t *testing.T) {
	a, e := newAdmission(t, 0)
	if a.Executable() != os.Args[0] {
		t.Errorf("executable %s", a.Executable())
	}
	if err := ask(t, a, "ok"); err != nil {
		t.Errorf("admitted: %v", err)
	}
	launched := e.await(t, plugin.EventLaunched, nil)
	err := ask(t, a, "no")
	if want := fmt.Sprintf("https://packages.example %d", launched.PID); status.Code(err) != codes.PermissionDenied ||
		!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), pin("no").String()) {
		t.Errorf("refused: %v", err)
	}
	if err := ask(t, a, "twice"); err != nil {
		t.Errorf("answered twice: %v", err)
	}
	if err := ask(t, a, "strange"); status.Code(err) != codes.Unknown || len(err.Error()) > 2*maxRefusal {
		t.Errorf("a code that there is not: %v", err)
	}
	if err := ask(t, a, "second"); !strings.Contains(err.Error(), "FailedPrecondition") {
		t.Errorf("a second stream: %v", err)
	}
	if err := ask(t, a, "ok/after all"); err != nil {
		t.Errorf("after all: %v", err)
	}
}

func TestEqualPinsShareAPromise(t *testing.T) {
	a, _ := newAdmission(t, 0)
	for _, name := range []string{"ok", "no"} {
		pending := a.CheckAdmission(pin(name))
		if a.CheckAdmission(pin(name)) != pending {
			t.Error("a pending check is made again")
		}
		result := pending.Wait(t.Context())
		if a.CheckAdmission(pin(name)) != pending {
			t.Error("a check that has its answer is made again")
		}
		if again := pending.Wait(t.Context()); !errors.Is(again, result) {
			t.Errorf("the result was %v and is %v", result, again)
		}
		a.ClearCache()
		if a.CheckAdmission(pin(name)) == pending {
			t.Error("ClearCache leaves a resolved promise")
		}
		hanging := a.CheckAdmission(pin("hang"))
		a.ClearCache()
		if a.CheckAdmission(pin("hang")) != hanging {
			t.Error("ClearCache drops a pending promise")
		}
	}
}

func TestClearCacheKeepsWhatWasSent(t *testing.T) {
	a, _ := newAdmission(t, 0)
	hanging := a.CheckAdmission(pin("hang"))
	if err := ask(t, a, "ok"); err != nil { // it was sent later, so the other one has been sent
		t.Fatal(err)
	}
	a.ClearCache()
	if a.CheckAdmission(pin("hang")) != hanging {
		t.Error("ClearCache drops a check that was sent")
	}
}

func TestRefusalsForNowAreNotKept(t *testing.T) {
	a, _ := newAdmission(t, 0)
	first := a.CheckAdmission(pin("later"))
	if err := first.Wait(t.Context()); status.Code(err) != codes.Unavailable {
		t.Errorf("refused for now: %v", err)
	}
	if second := a.CheckAdmission(pin("later")); second == first {
		t.Error("the plugin is not asked again")
	} else if err := second.Wait(t.Context()); status.Code(err) != codes.Unavailable {
		t.Errorf("refused for now, again: %v", err)
	}
}

func TestCrash(t *testing.T) {
	a, e := newAdmission(t, 0)
	if err := ask(t, a, "ok"); err != nil {
		t.Fatal(err)
	}
	first := e.await(t, plugin.EventLaunched, nil)
	flying := a.CheckAdmission(pin("hang"))
	err := ask(t, a, "crash")
	if !errors.Is(err, ErrCrashed) || !errors.Is(err, ErrAborted) || !strings.Contains(err.Error(), "exit status 6") {
		t.Errorf("the check that made it crash: %v", err)
	}
	if err := flying.Wait(t.Context()); !errors.Is(err, ErrCrashed) {
		t.Errorf("a check in flight: %v", err)
	}
	if err := ask(t, a, "ok"); err != nil {
		t.Errorf("a kept answer after the crash: %v", err)
	}
	if err := ask(t, a, "ok/2"); err != nil {
		t.Errorf("a check after the crash: %v", err)
	}
	second := e.await(t, plugin.EventLaunched, func(event Event) bool { return event.PID != first.PID })
	if pause := second.Time.Sub(first.Time); pause < 50*time.Millisecond {
		t.Errorf("it is started again after %v", pause)
	}
}

func TestPluginsThatNeverWork(t *testing.T) {
	for args, want := range map[string]error{
		"version":  ErrProtocol,
		"no hello": ErrProtocol,
		"silent":   ErrTimeout,
		"exit":     ErrCrashed,
		"close":    ErrCrashed,
	} {
		t.Run(args, func(t *testing.T) {
			timeout := time.Minute
			if args == "silent" {
				timeout = 50 * time.Millisecond
			}
			a, e := newAdmission(t, timeout, strings.Fields(args)...)
			promises := []plugin.Promise{a.CheckAdmission(pin("ok/1")), a.CheckAdmission(pin("ok/2"))}
			for _, promise := range promises {
				err := promise.Wait(t.Context())
				for _, sentinel := range []error{ErrProtocol, ErrTimeout, ErrCrashed, ErrQueueFull} {
					if errors.Is(err, sentinel) != (sentinel == want) { //nolint:errorlint // are they the same?
						t.Errorf("%v, want %v", err, want)
					}
				}
			}
			if args == "silent" {
				askUntilEnded(t, e, func() error { return ask(t, a, "ok/3") })
			}
			e.await(t, plugin.EventTerminated, nil)
			if err := ask(t, a, "ok/1"); !errors.Is(err, want) {
				t.Errorf("again: %v", err)
			}
		})
	}
}

// askUntilEnded has checks time out until the plugin was ended for that. On a busy machine the first do so before its process runs, which
// is not its fault: only one that is asked in vain is ended.
func askUntilEnded(t *testing.T, e *events, check func() error) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !e.has(plugin.EventTerminated) && time.Now().Before(end); {
		if err := check(); !errors.Is(err, ErrTimeout) {
			t.Fatalf("once more: %v", err)
		}
	}
}

// askUntilAnswered makes a check again while it times out: on a busy machine the process may take longer to start.
func askUntilAnswered(t *testing.T, a *AdmissionPlugin, name string) {
	t.Helper()
	err := ask(t, a, name)
	for end := time.Now().Add(time.Minute); errors.Is(err, ErrTimeout) && time.Now().Before(end); {
		err = ask(t, a, name)
	}
	if err != nil {
		t.Fatalf("check of %s: %v", name, err)
	}
}

func TestSecondHello(t *testing.T) {
	a, _ := newAdmission(t, 0)
	if err := ask(t, a, "again"); !errors.Is(err, ErrProtocol) {
		t.Errorf("a second hello: %v", err)
	}
	if err := ask(t, a, "ok"); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestNoSuchPlugin(t *testing.T) {
	h := newHost(t)
	a, err := h.NewAdmissionPlugin([]string{"/no/such/plugin"})
	if err != nil {
		t.Fatal(err)
	}
	err = a.CheckAdmission(pin("ok")).Wait(t.Context())
	if !errors.Is(err, ErrCrashed) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a plugin that cannot be started: %v", err)
	}
	if _, err := h.NewAdmissionPlugin(nil); err == nil {
		t.Error("no command line is taken")
	}
}

// TestMuttering: messages that answer no check do not keep a plugin.
func TestMuttering(t *testing.T) {
	a, e := newAdmissionOf(t, "mutters", time.Second)
	askUntilEnded(t, e, func() error { return ask(t, a, "ok") })
	e.await(t, plugin.EventTerminated, nil)
}

func TestTimeout(t *testing.T) {
	a, e := newAdmission(t, 2*time.Second)
	askUntilAnswered(t, a, "ok")
	hanging := a.CheckAdmission(pin("hang"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := hanging.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with an ended context: %v", err)
	}
	if err := hanging.Wait(t.Context()); !errors.Is(err, ErrTimeout) {
		t.Errorf("no answer: %v", err)
	}
	// It has answered nothing for long: it is another process that answers the next check.
	e.await(t, plugin.EventTerminated, nil)
	askUntilAnswered(t, a, "ok/2")
}

func TestTimeoutFailsThatCheckOnly(t *testing.T) {
	const timeout = 4 * time.Second
	a, e := newAdmission(t, timeout)
	askUntilAnswered(t, a, "ok")
	stopping := a.CheckAdmission(pin("stop"))
	first := e.await(t, plugin.EventLaunched, nil)
	<-time.After(timeout / 2)
	later := a.CheckAdmission(pin("ok/later")) // the plugin gets it and never reads it
	if err := stopping.Wait(t.Context()); !errors.Is(err, ErrTimeout) {
		t.Errorf("the check that made it hang: %v", err)
	}
	if err := later.Wait(t.Context()); err != nil {
		t.Errorf("another one: %v", err)
	}
	e.await(t, plugin.EventLaunched, func(event Event) bool { return event.PID != first.PID })
}

func TestStoppedPlugin(t *testing.T) {
	a, _ := newAdmission(t, 0)
	if err := ask(t, a, "ok"); err != nil {
		t.Fatal(err)
	}
	plugins := a.host.Plugins()
	if err := syscall.Kill(plugins[0].PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return isStopped(plugins[0].PID()) })
	pending := a.CheckAdmission(pin("ok/2"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	a.Close(ctx)
	if took := time.Since(start); took > 1500*time.Millisecond {
		t.Errorf("the end of the context did not hasten Close, which waits 2 s before it sends a signal: %v", took)
	}
	if err := pending.Wait(t.Context()); !errors.Is(err, ErrAborted) {
		t.Errorf("a pending check: %v", err)
	}
	if a.host.Plugins() != nil {
		t.Error("the plugin is still there")
	}
}

func TestCloseAborts(t *testing.T) {
	a, e := newAdmission(t, 0)
	pending := []plugin.Promise{a.CheckAdmission(pin("hang"))}
	if err := ask(t, a, "ok"); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	for i := range 10 {
		promise := &Promise{pin: pin(fmt.Sprint("unsent ", i))}
		a.waiting.push(promise)
		pending = append(pending, promise)
	}
	a.mu.Unlock()
	var closers sync.WaitGroup
	for range 2 {
		closers.Go(func() { a.Close(t.Context()) })
	}
	closers.Wait()
	for _, promise := range pending {
		if err := promise.Wait(t.Context()); !errors.Is(err, ErrAborted) || errors.Is(err, ErrCrashed) {
			t.Errorf("a pending check: %v", err)
		}
	}
	if event := e.await(t, plugin.EventTerminated, nil); !errors.Is(event.Err, ErrTerminated) {
		t.Errorf("the plugin was not asked to end: %v", event.Err)
	}
	if err := ask(t, a, "ok/2"); !errors.Is(err, ErrAborted) {
		t.Errorf("after Close: %v", err)
	}
}

func TestCloseOfTheHostAborts(t *testing.T) {
	a, e := newAdmission(t, 0)
	pending := a.CheckAdmission(pin("hang"))
	if err := ask(t, a, "ok"); err != nil {
		t.Fatal(err)
	}
	a.host.Close(t.Context())
	if err := pending.Wait(t.Context()); !errors.Is(err, ErrAborted) || errors.Is(err, ErrCrashed) {
		t.Errorf("a pending check: %v", err)
	}
	if event := e.await(t, plugin.EventTerminated, nil); !errors.Is(event.Err, ErrTerminated) {
		t.Errorf("the plugin was not told to end: %v", event.Err)
	}
	if err := ask(t, a, "ok/2"); !errors.Is(err, ErrAborted) {
		t.Errorf("afterwards: %v", err)
	}
	if err := ask(t, NewAdmissionPlugin(t.Context(), a.host, a.spec.Args), "ok"); !errors.Is(err, ErrAborted) {
		t.Errorf("another handle: %v", err)
	}
}

func TestStreamEndsWithAborted(t *testing.T) {
	records := newRecorder()
	a, _ := newAdmission(t, 0)
	a.logger = slog.New(records)
	if err := ask(t, a, "ok"); err != nil {
		t.Fatal(err)
	}
	a.Close(t.Context())
	if record := <-records.records; record.Message != "stream: Aborted" {
		t.Errorf("the plugin says %q", record.Message)
	}
}

func TestKilledPlugin(t *testing.T) {
	a, e := newAdmission(t, 0)
	pending := a.CheckAdmission(pin("hang"))
	if err := ask(t, a, "ok"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(e.await(t, plugin.EventLaunched, nil).PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := pending.Wait(t.Context()); !errors.Is(err, ErrCrashed) {
		t.Errorf("a pending check: %v", err)
	}
}

func TestBounds(t *testing.T) {
	a, _ := newAdmission(t, 0, "silent")
	for name, bad := range map[string]plugin.Pin{
		"long":     {PackageName: strings.Repeat("x", maxPin+1)},
		"no UTF-8": {PackageName: "p", InstanceID: "\xff"},
	} {
		if err := a.CheckAdmission(bad).Wait(t.Context()); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a pin that is %s: %v", name, err)
		}
	}
	if a.unit != nil {
		t.Error("the plugin is started for them")
	}
	for i := range maxPending {
		a.CheckAdmission(pin(fmt.Sprint(i)))
	}
	err := a.CheckAdmission(pin("one too many")).Wait(t.Context())
	if !errors.Is(err, ErrQueueFull) || status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one check too many: %v", err)
	}
}

func TestKeptAnswersAreBounded(t *testing.T) {
	a, _ := newAdmissionOf(t, "admit all", 0)
	ctx := t.Context()
	var last plugin.Promise
	const more = 1000
	for i := range maxKept + more {
		last = a.CheckAdmission(pin(fmt.Sprint(i)))
		if i%1000 == 0 {
			if err := last.Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := last.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.waiting.Len()+a.sent.Len() == 0
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.checks) != maxKept || a.kept.Len() != maxKept {
		t.Errorf("%d and %d answers are kept, want %d", len(a.checks), a.kept.Len(), maxKept)
	}
	if a.checks[pin("0")] != nil || a.checks[pin(fmt.Sprint(maxKept+more-1))] != last {
		t.Error("it is not the oldest that are dropped")
	}
}

func TestIdleHandle(t *testing.T) {
	h := newHost(t)
	const n = 1000
	handles := make([]*AdmissionPlugin, n)
	var before, after runtime.MemStats
	runtime.GC()
	goroutines := runtime.NumGoroutine()
	runtime.ReadMemStats(&before)
	for i := range handles {
		handles[i] = NewAdmissionPlugin(t.Context(), h, []string{"/bin/true", "argument"})
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / n
	t.Logf("%d bytes each", each)
	if each > 2000 {
		t.Errorf("a handle costs %d bytes", each)
	}
	if runtime.NumGoroutine() > goroutines {
		t.Error("a handle has a goroutine")
	}
	runtime.KeepAlive(handles)
}

func TestCachedCheckDoesNotAllocate(t *testing.T) {
	a, _ := newAdmission(t, 0)
	if err := ask(t, a, "ok"); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		if err := a.CheckAdmission(pin("ok")).Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
