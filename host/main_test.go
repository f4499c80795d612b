//go:build unix

package host

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/plugin"
)

// modeEnv says which plugin the test binary is.
const modeEnv = "PATCHBAY_HOST_TEST"

// modes are the plugins of the tests, by name. They get the arguments that follow the name of the program.
var modes = map[string]func(args []string){}

func TestMain(m *testing.M) {
	registerPlugins()
	registerAdmissionPlugins()
	registerCIPDPlugins()
	registerHosts()
	registerCheckPlugins()
	if mode := os.Getenv(modeEnv); mode != "" {
		modes[mode](os.Args[1:])
		os.Exit(0)
	}
	leaktest.Main(m)
}

// newHost returns a host that is closed when the test ends.
func newHost(t testing.TB) *Host {
	t.Helper()
	h := &Host{}
	initialize(t, h)
	return h
}

func initialize(t testing.TB, h *Host) {
	t.Helper()
	if err := h.Initialize(pluginConfig()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close(context.Background()) })
}

func pluginConfig() plugin.Config {
	return plugin.Config{ServiceURL: "https://packages.example", Repository: repository{}}
}

// self is the Spec of the test binary as a plugin.
func self(mode string, args ...string) Spec {
	return Spec{
		Name: mode,
		Args: append([]string{os.Args[0]}, args...),
		Env:  append(os.Environ(), modeEnv+"="+mode, "GORACE=atexit_sleep_ms=0"),
	}
}

// launch launches the test binary as a plugin.
func launch(t testing.TB, h *Host, spec Spec) *PluginProcess {
	t.Helper()
	p, err := h.Launch(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// said waits for the next message of a plugin's log that it has not returned yet.
func said(t testing.TB, p *PluginProcess) func() string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	lines := make(chan string)
	var following sync.WaitGroup
	following.Go(func() {
		for record := range p.Logs().Follow(ctx, -1) {
			select {
			case lines <- record.Message:
			case <-ctx.Done():
				return
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		following.Wait()
	})
	return func() string {
		t.Helper()
		select {
		case line := <-lines:
			return line
		case <-ctx.Done():
			t.Fatalf("plugin %s says nothing; so far: %v", p.Name(), p.Logs().Tail(0))
			return ""
		}
	}
}

// connect is what an SDK does: it reads the handshake and connects to the host.
func connect() (handshake.Handshake, *grpc.ClientConn) {
	h, err := handshake.Read(os.Stdin)
	if err != nil {
		fatal(err)
	}
	return h, dial(h.HostSocket)
}

func dial(socket string) *grpc.ClientConn {
	c, err := grpc.NewClient("passthrough:///host", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		fatal(err)
	}
	return c
}

// as returns a context for calls with a ticket.
func as(ticket string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), handshake.TicketKey, ticket)
}

// stop waits until the host asks the plugin to end.
func stop() {
	var b [1]byte
	for {
		if _, err := os.Stdin.Read(b[:]); err != nil {
			return
		}
	}
}

func fatal(err error) {
	fmt.Println("fatal:", err)
	os.Exit(3)
}

// events collects the events of a host.
type events struct {
	mu   sync.Mutex
	list []Event
	more chan struct{}
}

func newEvents() *events { return &events{more: make(chan struct{}, 1)} }

func (e *events) add(event Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, event)
	select {
	case e.more <- struct{}{}:
	default:
	}
}

// has says whether there was an event.
func (e *events) has(kind plugin.EventKind) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.ContainsFunc(e.list, func(event Event) bool { return event.Kind == kind })
}

// await waits for an event and returns it.
func (e *events) await(t testing.TB, kind plugin.EventKind, accept func(Event) bool) Event {
	t.Helper()
	timeout := time.After(time.Minute)
	for {
		e.mu.Lock()
		list := e.list
		e.mu.Unlock()
		for _, event := range list {
			if event.Kind == kind && (accept == nil || accept(event)) {
				return event
			}
		}
		select {
		case <-e.more:
		case <-timeout:
			t.Fatalf("no such event of kind %s among %v", kind, list)
		}
	}
}

// done waits for the end of a plugin.
func done(t testing.TB, p *PluginProcess) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Fatalf("plugin %s does not end; it said: %v", p.Name(), p.Logs().Tail(0))
	}
}

type repository struct{}

func (repository) ListMetadata(_ context.Context, pin plugin.Pin, keys []string, page plugin.Page) ([]plugin.Metadata, string, error) {
	return []plugin.Metadata{{Key: "echo", Value: fmt.Appendf(nil, "%s %q %d %q", pin, keys, page.Size, page.Token)}}, "next", nil
}

// recorder is a slog.Handler that hands on the messages.
type recorder struct {
	slog.Handler
	records chan slog.Record
}

func newRecorder() *recorder {
	return &recorder{slog.DiscardHandler, make(chan slog.Record, 1000)}
}

func (*recorder) Enabled(context.Context, slog.Level) bool { return true }

func (r *recorder) Handle(_ context.Context, record slog.Record) error {
	r.records <- record
	return nil
}

func (r *recorder) WithAttrs([]slog.Attr) slog.Handler { return r }
func (r *recorder) WithGroup(string) slog.Handler      { return r }
