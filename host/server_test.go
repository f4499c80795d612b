//go:build unix

package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

func TestWhatAPluginMayCall(t *testing.T) {
	e := newEvents()
	h := &Host{Events: e.add}
	initialize(t, h)
	spec := self("caller")
	spec.Controller = grantHealth(echoHealth{})
	p := launch(t, h, spec)
	next := said(t, p)
	for _, want := range []string{
		"metadata: OK",
		`p:i ["k"] 1000 "t" next`,
		"other service: PermissionDenied",
		"no pin: InvalidArgument",
		"granted: OK",
		"granted stream: OK",
		"no such method: Unimplemented",
		"not granted: PermissionDenied",
		"no such service: PermissionDenied",
		"no ticket: Unauthenticated",
		"wrong ticket: PermissionDenied",
		"wrong ticket: PermissionDenied",
		"wrong ticket: PermissionDenied",
		"wrong ticket: PermissionDenied",
		"giant: ResourceExhausted",
		"after all: OK",
	} {
		if got := next(); got != want {
			t.Errorf("the plugin said %q, want %q", got, want)
		}
	}
	for _, why := range []string{"not granted", "no ticket", "something else than a ticket", "wrong or has expired"} {
		event := e.await(t, plugin.EventDenied, func(event Event) bool { return strings.Contains(event.Message, why) })
		if event.Name != "caller" || event.PID != p.PID() {
			t.Errorf("event %+v", event)
		}
	}
}

func TestNothingIsGrantedByDefault(t *testing.T) {
	h := newHost(t)
	p, err := h.LaunchPlugin(t.Context(), []string{"true"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.services) != 1 || p.services["patchbay.plugin.v1.Host"].impl == nil {
		t.Errorf("services: %v", p.services)
	}
	done(t, p)
}

func TestControllersAreChecked(t *testing.T) {
	h := newHost(t)
	var none grpc_health_v1.HealthServer
	for name, register := range map[string]func(grpc.ServiceRegistrar){
		"twice": func(s grpc.ServiceRegistrar) {
			grpc_health_v1.RegisterHealthServer(s, echoHealth{})
			grpc_health_v1.RegisterHealthServer(s, echoHealth{})
		},
		"the host's own": func(s grpc.ServiceRegistrar) { pluginv1.RegisterHostServer(s, &hostService{}) },
		"nil":            func(s grpc.ServiceRegistrar) { s.RegisterService(&grpc_health_v1.Health_ServiceDesc, none) },
		"another type":   func(s grpc.ServiceRegistrar) { s.RegisterService(&grpc_health_v1.Health_ServiceDesc, 7) },
	} {
		if _, err := h.LaunchPlugin(t.Context(), []string{"true"}, &Controller{Services: register}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// stolen is what a plugin gave away.
type stolen struct{ socket, ticket string }

func steal(t *testing.T, h *Host) (*PluginProcess, stolen) {
	t.Helper()
	spec := self("ticket")
	spec.Controller = grantHealth(echoHealth{})
	p := launch(t, h, spec)
	next := said(t, p)
	return p, stolen{next(), next()}
}

// check calls the host as the process of the test, which no plugin owns.
func (s stolen) check(t *testing.T, ticket string) error {
	t.Helper()
	c := dial(s.socket)
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(as(ticket), time.Minute)
	defer cancel()
	_, err := grpc_health_v1.NewHealthClient(c).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err
}

func TestStrangersAreRefused(t *testing.T) {
	e := newEvents()
	h := &Host{Events: e.add}
	initialize(t, h)
	p, loot := steal(t, h)
	if err := loot.check(t, loot.ticket); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a stranger with the ticket: %v", err)
	}
	event := e.await(t, plugin.EventDenied, nil)
	if event.PID != os.Getpid() || event.Name != "" || !strings.Contains(event.Message, `plugin "ticket"`) {
		t.Errorf("event %+v", event)
	}

	// Another plugin is a stranger as well, and so are its descendants.
	other := self("child", loot.socket, loot.ticket)
	other.Name = "thief"
	thief := launch(t, h, other)
	if got := said(t, thief)(); got != "child: PermissionDenied" {
		t.Errorf("the ticket in another plugin: %s", got)
	}
	e.await(t, plugin.EventDenied, func(event Event) bool { return event.Name == "thief" })
	done(t, thief)

	if err := p.Terminate(t.Context()); !errors.Is(err, ErrTerminated) {
		t.Error(err)
	}
	if err := loot.check(t, loot.ticket); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a stranger with a ticket that has expired: %v", err)
	}
	e.await(t, plugin.EventDenied, func(event Event) bool { return strings.Contains(event.Message, "expired") })
}

func TestRefusalsAreNotToldForEver(t *testing.T) {
	told := map[string]int{}
	s := &server{emit: func(e Event) { told[e.Name]++ }}
	thief := &PluginProcess{spec: Spec{Name: "thief"}}
	for range 1000 {
		s.deny(nil, nil, "call", "no")
		s.deny(nil, thief, "call", "no")
	}
	if want := map[string]int{"": untrusted.MaxLogRate, "thief": untrusted.MaxLogRate}; !maps.Equal(told, want) {
		t.Errorf("events %v, want %v", told, want)
	}
}

func TestDescendantsMayCall(t *testing.T) {
	h := newHost(t)
	p := launch(t, h, self("family"))
	if got := said(t, p)(); got != "child: OK" {
		t.Errorf("a child of the plugin got %q", got)
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	e := newEvents()
	h := &Host{Events: e.add}
	initialize(t, h)
	spec := self("connections")
	spec.Controller = grantHealth(echoHealth{})
	p := launch(t, h, spec)
	if got := said(t, p)(); got != fmt.Sprint(maxConns) {
		t.Errorf("%s connections, want %d", got, maxConns)
	}
	e.await(t, plugin.EventDenied, func(event Event) bool { return event.Name == p.Name() && strings.Contains(event.Message, "too many") })

	// It costs no other plugin anything.
	other := launch(t, h, self("family"))
	if got := said(t, other)(); got != "child: OK" {
		t.Errorf("another plugin got %q", got)
	}
}

func TestCallsEndWithThePlugin(t *testing.T) {
	h := newHost(t)
	impl := echoHealth{called: make(chan struct{}), ended: make(chan context.Context, 1)}
	spec := self("watcher")
	spec.Controller = grantHealth(impl)
	p := launch(t, h, spec)
	<-impl.called
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	done(t, p)
	<-impl.ended
	p.calls.mu.Lock()
	open := len(p.calls.conns)
	p.calls.mu.Unlock()
	if open != 0 {
		t.Errorf("%d connections are open after the end", open)
	}
	if err := p.calls.connect(nil); err == nil {
		t.Error("the plugin can still connect")
	}
}

func TestCalls(t *testing.T) {
	var k calls
	for range maxCalls {
		if err := k.begin(maxCalls); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.begin(maxCalls); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one call too many: %v", err)
	}
	k.end()
	if err := k.begin(maxCalls); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
	k.finish(time.Hour) // no connection to wait for
	k.end()
	if err := k.begin(maxCalls); status.Code(err) != codes.PermissionDenied {
		t.Errorf("after the end: %v", err)
	}
}

// TestForeignConnections is about a connection of the plugin that it has handed to another process.
func TestForeignConnections(t *testing.T) {
	raw, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(shortDir(t), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	client, err := new(net.Dialer).DialContext(t.Context(), "unix", raw.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	accepted, err := listener{raw, ProtocolPatchbay}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c, ok := accepted.(*conn)
	if !ok {
		t.Fatalf("the connection is a %T", accepted)
	}
	var k calls
	c.uncount = func() { k.disconnect(c) }
	if err := k.connect(c); err != nil {
		t.Fatal(err)
	}
	k.finish(time.Millisecond)
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("it is still open: %v", err)
	}
	if len(k.conns) != 0 {
		t.Error("it is still counted")
	}
}

func TestTicket(t *testing.T) {
	for _, n := range []uint64{0, 1, 36, 1<<64 - 1} {
		want := newTicket(n)
		got, ok := parseTicket(want.String())
		if !ok || !got.equal(want) {
			t.Errorf("ticket %d does not survive its text %s", n, want)
		}
		if newTicket(n).equal(want) {
			t.Error("two tickets have the same secret")
		}
		if other := (ticket{n + 1, want.secret}); other.equal(want) {
			t.Error("tickets of two plugins are equal")
		}
	}
	secret := strings.Repeat("A", 43)
	for _, bad := range []string{"", ".", "1", "1.", "." + secret, "1." + secret[1:], "1." + secret + "A", "01." + secret, "-1." + secret,
		"A." + secret, "1." + secret[1:] + "B", "1." + secret[1:] + "=", "1.\n" + secret[1:], "1." + secret[1:] + "é"} {
		if _, ok := parseTicket(bad); ok {
			t.Errorf("%q is taken for a ticket", bad)
		}
	}
}

func FuzzParseTicket(f *testing.F) {
	f.Add(newTicket(7).String())
	f.Add("1." + strings.Repeat("A", 43))
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		if ticket, ok := parseTicket(s); ok && ticket.String() != s {
			t.Errorf("%q is read as %q", s, ticket)
		}
	})
}

func TestLogRecord(t *testing.T) {
	r := &pluginv1.LogRecord{Message: "m"}
	for i := range 2 * maxAttributes {
		r.Attributes = append(r.Attributes, &pluginv1.Attribute{Key: fmt.Sprint(i), Value: &pluginv1.Attribute_Number{Number: 1.5}})
	}
	got := logRecord(r)
	if len(got.Attrs) != maxAttributes || got.Attrs[1].Key != "1" || got.Attrs[1].Value.Float64() != 1.5 || !got.Time.IsZero() {
		t.Errorf("record %+v", got)
	}
}

func TestMetadataErrors(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want codes.Code
	}{
		{status.Error(codes.InvalidArgument, "bad token"), codes.InvalidArgument},
		{fmt.Errorf("list: %w", status.Error(codes.NotFound, "none")), codes.NotFound},
		{fmt.Errorf("list: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		{errors.New("disk"), codes.Internal},
	} {
		if got := status.Code(metadataError(tc.err)); got != tc.want {
			t.Errorf("%v becomes %s, want %s", tc.err, got, tc.want)
		}
	}
	_, err := (&hostService{}).ListMetadata(t.Context(), &pluginv1.ListMetadataRequest{Pin: &pluginv1.Pin{PackageName: "p", InstanceId: "i"}})
	if diff := cmp.Diff(codes.FailedPrecondition, status.Code(err)); diff != "" {
		t.Errorf("without a repository: %v", err)
	}
}
