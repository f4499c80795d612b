package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/trust"
)

// onDemand is a plugin that is started by the first call, and known before.
func onDemand(behaviour string) launcher.Plugin {
	p := launchable(behaviour)
	p.OnDemand, p.Idle = true, time.Hour
	p.Announce = plugin.Info{Type: "T", Name: "launched", Versions: []string{"v1beta1"}}
	return p
}

// counting is a handler that counts its calls, and makes one to the plugin when it registers it if it is to.
type counting struct {
	cache.PluginHandler
	mu    sync.Mutex
	calls []string
	use   bool
}

func (c *counting) note(call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, call)
}

func (c *counting) ValidatePlugin(name, endpoint string, versions []string) error {
	c.note("validate " + strings.Join(versions, ","))
	return nil
}

func (c *counting) RegisterPlugin(name, endpoint string, versions []string, _ *time.Duration) error {
	c.note("register")
	if !c.use {
		return nil
	}
	conn, err := grpc.NewClient("unix:"+endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = v1beta1.NewExampleClient(conn).GetExampleInfo(context.Background(), &v1beta1.ExampleRequest{})
	return err
}

func (c *counting) DeRegisterPlugin(string) { c.note("deregister") }

func (c *counting) seen() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.calls, "; ")
}

// newCounting returns a host whose handler counts.
func newCounting(t *testing.T) (*host, *counting) {
	c := &counting{PluginHandler: patchbay.AcceptHandler()}
	h := &host{t: t, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state.db"), handler: c}
	h.start()
	t.Cleanup(func() { h.end() })
	return h, c
}

func (h *host) listed() plugin.Status {
	for _, s := range h.rt.Plugins() {
		if s.Name == "launched" && s.Current {
			return s
		}
	}
	return plugin.Status{}
}

func (h *host) idle() {
	h.t.Helper()
	h.until("idleness", func() bool { return h.listed().State == plugin.StateIdle })
}

// greet calls the plugin through the registry, and returns the process that answered.
func (h *host) greet(ctx context.Context) (pid string, err error) {
	client, err := dynamicplugins.Dispense[v1beta1.ExampleClient](h.rt.Registry(), "T", "launched")
	if err != nil {
		return "", err
	}
	answer, err := client.GetExampleInfo(ctx, &v1beta1.ExampleRequest{})
	return answer.GetError(), err
}

// greetAlways has callers greet the plugin all the time, of whom none may fail, until stop is called.
func (h *host) greetAlways(callers int) (stop func()) {
	stopped := make(chan struct{})
	var calls sync.WaitGroup
	for range callers {
		calls.Go(func() {
			for {
				select {
				case <-stopped:
					return
				default:
				}
				if _, err := h.greet(h.t.Context()); err != nil {
					h.t.Error(err)
					return
				}
			}
		})
	}
	return func() {
		close(stopped)
		calls.Wait()
	}
}

func (h *host) mustGreet() string {
	h.t.Helper()
	pid, err := h.greet(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return pid
}

// TestOnDemand: an idle plugin is registered without a process, the first of many calls at once starts one for all, its end is nobody's
// business, and the next call starts another.
func TestOnDemand(t *testing.T) {
	t.Parallel()
	h, handler := newCounting(t)
	p := onDemand("serve")
	h.set(p)
	h.idle()
	if s := h.unit(); s.State != plugin.StateIdle || s.PID != 0 || s.Socket != h.listed().SocketPath {
		t.Errorf("it is %+v", s)
	}
	var pids [64]string
	var calls sync.WaitGroup
	for i := range pids {
		calls.Go(func() { pids[i] = h.mustGreet() })
	}
	calls.Wait()
	if all := slices.Compact(pids[:]); len(all) != 1 {
		t.Errorf("processes %v answered", all)
	}
	first := h.running("a process").PID
	p.Idle = 20 * time.Millisecond
	h.set(p) // another idle time replaces nothing
	h.idle()
	h.until("the end of the process", func() bool { return !alive(first) }) // until then it answers calls
	if again := h.mustGreet(); again == pids[0] {
		t.Errorf("process %s answers after its end", again)
	}
	if want := "validate v1beta1; register"; handler.seen() != want {
		t.Errorf("the handler saw %q, want %q", handler.seen(), want)
	}
}

// TestOnlyCallsAreNeeds: who looks at an idle plugin does not start it, and who keeps a connection to one that runs does not hold it.
func TestOnlyCallsAreNeeds(t *testing.T) {
	h, _ := newCounting(t)
	p := onDemand("serve")
	h.set(p)
	h.idle()
	socket := h.listed().SocketPath
	for range 3 {
		if _, err := sock.Probe(t.Context(), socket); err != nil {
			t.Error(err)
		}
	}
	silent, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	health, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("its health is %v, %v", health, err)
	}
	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	if err != nil {
		t.Error(err)
	}
	if _, err := reflected(t.Context(), conn); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("reflection: %v", err)
	}
	h.rt.Plugins()
	if s := h.unit(); s.State != plugin.StateIdle {
		t.Errorf("it was started: %+v", s)
	}

	h.mustGreet()
	if _, err := reflected(t.Context(), conn); err != nil {
		t.Error(err)
	}
	if _, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{}); err != nil { // for as long as it lives
		t.Error(err)
	}
	p.Idle = 20 * time.Millisecond
	h.set(p)
	h.idle()
}

func reflected(ctx context.Context, conn *grpc.ClientConn) (*reflectionv1.ServerReflectionResponse, error) {
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	request := &reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}
	if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) { // EOF: it has ended, and Recv says why
		return nil, err
	}
	return stream.Recv()
}

// TestHandlerThatCalls: a handler that calls the plugin when it registers it has it started.
func TestHandlerThatCalls(t *testing.T) {
	h, handler := newCounting(t)
	handler.use = true
	h.set(onDemand("serve"))
	h.running("a process")
	if s := h.listed(); s.State != plugin.StateRegistered {
		t.Errorf("it is %+v", s)
	}
}

// TestFailedStartIsTheCallersError: the caller hears why there is no process, in each way in which that can be.
func TestFailedStartIsTheCallersError(t *testing.T) {
	t.Parallel()
	missing := onDemand("serve")
	missing.Args = []string{filepath.Join(t.TempDir(), "missing")}
	other := onDemand("serve")
	other.Env = append(other.Env, nameEnv+"=other")
	mute := onDemand("mute")
	mute.StartTimeout = 200 * time.Millisecond
	for name, test := range map[string]struct {
		plugin launcher.Plugin
		why    string
	}{
		"missing": {missing, "no such file"},
		"crash":   {onDemand("crash"), "the flux is empty"},
		"other":   {other, "it says that it is T/other, and it is announced as T/launched"},
		"mute":    {mute, "200ms"},
	} {
		t.Run(name, func(t *testing.T) {
			h, handler := newCounting(t)
			h.set(test.plugin)
			h.until("a registration", func() bool { return h.listed().State == plugin.StateIdle })
			_, err := h.greet(t.Context())
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), test.why) {
				t.Errorf("got %v, want %q in it", err, test.why)
			}
			if want := "validate v1beta1; register"; handler.seen() != want {
				t.Errorf("the handler saw %q, want %q", handler.seen(), want)
			}
			h.until("rest", func() bool { // nobody needs it
				s := h.unit().State
				return s == plugin.StateIdle || s == plugin.StateFailed || s == plugin.StateBlocked
			})
		})
	}
}

// TestOtherVersions: a process with other versions than those announced is registered with its own, and serves the call that started it.
func TestOtherVersions(t *testing.T) {
	h, handler := newCounting(t)
	p := onDemand("serve")
	p.Env = append(p.Env, versionEnv+"=v1beta2")
	h.set(p)
	h.idle()
	h.mustGreet()
	h.until("another registration", func() bool { return h.listed().Version == "v1beta2" })
	want := "validate v1beta1; register; validate v1beta2; register"
	h.until("the end of the older one", func() bool { return handler.seen() == want })
	h.mustGreet()
}

// TestStopOfWhatIsOnDemand: a plugin that was stopped is gone, and no call starts it, until somebody starts it by hand.
func TestStopOfWhatIsOnDemand(t *testing.T) {
	h, _ := newCounting(t)
	h.set(onDemand("serve"))
	h.idle()
	client, err := dynamicplugins.Dispense[v1beta1.ExampleClient](h.rt.Registry(), "T", "launched")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.rt.Launcher().Stop("unit"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.GetExampleInfo(t.Context(), &v1beta1.ExampleRequest{}); err == nil {
		t.Error("it was started by a call")
	}
	h.until("its end", func() bool { return h.listed().State == "" })
	h.set(onDemand("serve")) // the same once more
	if s := h.unit(); s.State != plugin.StateStopped {
		t.Errorf("it is %+v", s)
	}
	if err := h.rt.Launcher().Start("unit"); err != nil {
		t.Fatal(err)
	}
	h.running("a process")
	h.mustGreet()
}

// TestCallWaitsNoLongerThanItsCaller: who gives up does not leave a start that nobody needs behind.
func TestCallWaitsNoLongerThanItsCaller(t *testing.T) {
	h, _ := newCounting(t)
	p := onDemand("mute")
	h.set(p)
	h.idle()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := h.greet(ctx); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v", err)
	}
	if err := h.rt.Launcher().Stop("unit"); err != nil {
		t.Error(err)
	}
}

// TestCrashOfWhatIsOnDemand: a process that dies while it serves costs the calls that it has, and nothing else.
func TestCrashOfWhatIsOnDemand(t *testing.T) {
	h, handler := newCounting(t)
	h.set(onDemand("serve"))
	h.idle()
	h.mustGreet()
	before := h.running("a process").PID
	if p, err := os.FindProcess(before); err != nil || p.Kill() != nil {
		t.Fatal(err)
	}
	h.until("another process", func() bool {
		_, err := h.greet(t.Context())
		return err == nil && h.unit().PID != before
	})
	if want := "validate v1beta1; register"; handler.seen() != want {
		t.Errorf("the handler saw %q, want %q", handler.seen(), want)
	}
}

// TestSocketOfWhatIsOnDemandIsRemoved: the host makes another one.
func TestSocketOfWhatIsOnDemandIsRemoved(t *testing.T) {
	t.Parallel()
	h, _ := newCounting(t)
	h.set(onDemand("serve"))
	h.idle()
	if err := os.Remove(h.listed().SocketPath); err != nil {
		t.Fatal(err)
	}
	h.until("another socket", func() bool {
		_, err := sock.Stat(filepath.Join(h.dir, "unit.0.sock"))
		return err == nil && h.listed().State == plugin.StateIdle
	})
	h.mustGreet()
}

// TestOnDemandOfAnotherUser: what is said of a plugin that runs as another user counts as that user's word, whoever listens for it, and its
// process is that user's.
func TestOnDemandOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can run a plugin as somebody else")
	}
	for user, may := range map[string]bool{"12345": true, "54321": false} {
		t.Run(user, func(t *testing.T) {
			h := &host{t: t, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state.db")}
			h.trust.Types = map[string]trust.Type{"T": {Users: []string{"12345"}, Groups: []string{}}}
			h.start()
			t.Cleanup(func() { h.end() })
			for dir := h.dir; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
				if info, err := os.Stat(dir); err != nil || os.Chmod(dir, info.Mode().Perm()|0o011) != nil { // as /run is
					t.Fatal(err)
				}
			}
			p := onDemand("serve")
			p.User, p.Group, p.Dir, p.SHA256 = user, "23456", "/", checked(t).SHA256 // a copy, which anybody may execute
			h.set(p)
			if !may {
				h.until("a refusal", func() bool {
					return slices.ContainsFunc(h.rt.Plugins(), func(s plugin.Status) bool {
						return s.State == plugin.StateRefused && strings.Contains(s.LastError, "user 54321 may not register plugins of type T")
					})
				})
				return
			}
			h.idle()
			h.mustGreet()
			ran, err := os.Stat(fmt.Sprintf("/proc/%d", h.running("a process").PID))
			if err != nil {
				t.Fatal(err)
			}
			if of, is := ran.Sys().(*syscall.Stat_t); !is || of.Uid != 12345 {
				t.Errorf("the process is of %+v", ran.Sys())
			}
		})
	}
}

// TestRecreationOnDemand: while the process of a plugin that must be alone is replaced, callers wait at its socket.
func TestRecreationOnDemand(t *testing.T) {
	t.Parallel()
	h, handler := newCounting(t)
	p := onDemand("alone")
	p.Upgrade, p.Dir = plugin.UpgradeRecreate, t.TempDir()
	h.set(p)
	h.idle()
	h.mustGreet()
	stop := h.greetAlways(8)
	for range 3 {
		if err := h.rt.Launcher().Restart(t.Context(), "unit"); err != nil {
			t.Error(err)
		}
	}
	before := h.unit().PID
	p.Env = append(p.Env, "CONFIGURED=otherwise")
	h.set(p)
	h.until("the process of another configuration", func() bool {
		s := h.unit()
		return s.State == plugin.StateRunning && s.PID != before
	})
	stop()
	if want := "validate v1beta1; register"; handler.seen() != want {
		t.Errorf("the handler saw %q, want %q", handler.seen(), want)
	}
}
