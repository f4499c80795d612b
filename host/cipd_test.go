//go:build unix

package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	cipdv1 "github.com/patchbay-dev/patchbay/api/patchbay/cipd/v1"
	"github.com/patchbay-dev/patchbay/internal/launch/sealedexec"
	"github.com/patchbay-dev/patchbay/plugin"
)

// newCIPDAdmission returns a handle to an admission plugin of CIPD, on a host of its own.
func newCIPDAdmission(t testing.TB, mode string, timeout time.Duration, args ...string) (*AdmissionPlugin, *events) {
	t.Helper()
	t.Setenv(modeEnv, mode) // the plugin inherits it
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	e := newEvents()
	h := &Host{Events: e.add}
	initialize(t, h)
	a := NewAdmission(t.Context(), h, Spec{Args: append([]string{os.Args[0]}, args...), Protocol: ProtocolCIPD}, timeout)
	t.Cleanup(func() { a.Close(t.Context()) })
	return a, e
}

func filePin(name string) plugin.Pin {
	return plugin.Pin{PackageName: name, InstanceID: sealedexec.Digest(sha256.Sum256([]byte(name))).InstanceID()}
}

func TestCIPDAdmission(t *testing.T) {
	a, e := newCIPDAdmission(t, "cipd", 0)
	check := func(p plugin.Pin) error { return a.CheckAdmission(p).Wait(t.Context()) }
	if err := check(filePin("ok")); err != nil {
		t.Errorf("admitted: %v", err)
	}
	launched := e.await(t, plugin.EventLaunched, nil)
	digest := sha256.Sum256([]byte("no"))
	err := check(filePin("no"))
	if want := fmt.Sprintf("https://packages.example HASH_ALGO_SHA256 %s %d", hex.EncodeToString(digest[:]), launched.PID); status.Code(err) !=
		codes.PermissionDenied || !strings.Contains(err.Error(), want) {
		t.Errorf("refused: %v, want %s", err, want)
	}
	old := plugin.Pin{PackageName: "no", InstanceID: strings.Repeat("0a", 20)}
	if err := check(old); !strings.Contains(err.Error(), "HASH_ALGO_SHA1 "+old.InstanceID) {
		t.Errorf("an instance with SHA-1: %v", err)
	}
	if err := check(plugin.Pin{PackageName: "ok", InstanceID: "none"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an instance that is none: %v", err)
	}
	if err := check(filePin("later")); status.Code(err) != codes.Unavailable {
		t.Errorf("refused for now: %v", err)
	}
	if err := check(filePin("second")); !strings.Contains(err.Error(), "FailedPrecondition") {
		t.Errorf("admissions are listed twice: %v", err)
	}
	if err := check(filePin("unknown")); !strings.Contains(err.Error(), "ignored: <nil>; malformed: InvalidArgument") {
		t.Errorf("answers to nothing: %v", err)
	}
	if err := check(filePin("metadata")); !strings.Contains(err.Error(), fmt.Sprintf(`%s ["k"] 0 "" <nil>`, filePin("metadata"))) {
		t.Errorf("metadata: %v", err)
	}
	if err := check(filePin("ok/after all")); err != nil {
		t.Errorf("after all: %v", err)
	}
	if again := e.await(t, plugin.EventLaunched, nil); again != launched {
		t.Errorf("it was started again: %v", again)
	}
}

func TestCIPDCrash(t *testing.T) {
	a, e := newCIPDAdmission(t, "cipd", 0)
	flying := a.CheckAdmission(filePin("hang"))
	if err := a.CheckAdmission(filePin("crash")).Wait(t.Context()); !errors.Is(err, ErrCrashed) || !strings.Contains(err.Error(), "exit status 6") {
		t.Errorf("the check that made it crash: %v", err)
	}
	if err := flying.Wait(t.Context()); !errors.Is(err, ErrCrashed) {
		t.Errorf("a check in flight: %v", err)
	}
	first := e.await(t, plugin.EventLaunched, nil)
	if err := a.CheckAdmission(filePin("ok")).Wait(t.Context()); err != nil {
		t.Errorf("a check after the crash: %v", err)
	}
	e.await(t, plugin.EventLaunched, func(event Event) bool { return event.PID != first.PID })
}

func TestCIPDPluginsThatNeverWork(t *testing.T) {
	for args, want := range map[string]error{"version": ErrProtocol, "silent": ErrTimeout, "exit": ErrCrashed} {
		t.Run(args, func(t *testing.T) {
			timeout := time.Minute
			if args == "silent" {
				timeout = 50 * time.Millisecond
			}
			a, e := newCIPDAdmission(t, "cipd", timeout, strings.Fields(args)...)
			if err := a.CheckAdmission(filePin("ok")).Wait(t.Context()); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
			if args == "silent" {
				askUntilEnded(t, e, func() error { return a.CheckAdmission(filePin("ok")).Wait(t.Context()) })
			}
			e.await(t, plugin.EventTerminated, nil)
		})
	}
}

func TestCIPDUnknownProtocol(t *testing.T) {
	h := newHost(t)
	a := NewAdmission(t.Context(), h, Spec{Args: []string{"/bin/true"}, Protocol: "other"}, 0)
	if err := a.CheckAdmission(filePin("ok")).Wait(t.Context()); err == nil || !strings.Contains(err.Error(), `unknown protocol "other"`) {
		t.Errorf("a protocol that there is not: %v", err)
	}
	spec := self("cipd")
	spec.Protocol, spec.PluginSocket = ProtocolCIPD, "/tmp/s"
	if _, err := h.Launch(t.Context(), spec); err == nil {
		t.Error("a plugin of CIPD is to serve at a path")
	}
}

func TestCIPDEndsWithAborted(t *testing.T) {
	records := newRecorder()
	a, e := newCIPDAdmission(t, "cipd", 0)
	a.logger = slog.New(records)
	if err := a.CheckAdmission(filePin("ok")).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.Close(t.Context())
	if record := <-records.records; record.Message != "ended: Aborted" {
		t.Errorf("the plugin says %q", record.Message)
	}
	if event := e.await(t, plugin.EventTerminated, nil); !errors.Is(event.Err, ErrTerminated) {
		t.Errorf("the end of its standard input did not end it: %v", event.Err)
	}
}

func TestCIPDCalls(t *testing.T) {
	e := newEvents()
	h := &Host{Events: e.add}
	initialize(t, h)
	spec := self("cipd calls")
	spec.Protocol = ProtocolCIPD
	p := launch(t, h, spec)
	next := said(t, p)
	for _, want := range []string{
		"metadata: OK", `p:da39a3ee5e6b4b0d3255bfef95601890afd80709 [] 5 "t" next`,
		"no service: PermissionDenied", "other service: PermissionDenied", "no instance: InvalidArgument",
		"admissions not granted: Unimplemented", "resolve not granted: Unimplemented", "no such service: Unimplemented",
		"no such method: Unimplemented", "the other host: Unimplemented",
		"no ticket: Unauthenticated", "the ticket elsewhere: Unauthenticated",
		"wrong ticket: PermissionDenied", "wrong ticket: PermissionDenied", "wrong ticket: PermissionDenied", "wrong ticket: PermissionDenied",
		"after all: OK",
	} {
		got := next()
		for got == "" || strings.HasPrefix(got, "a log of ") { // what it prints comes another way
			got = next()
		}
		if got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
	levels := map[string]slog.Level{}
	for _, record := range p.Logs().Tail(-1) {
		levels[record.Message] = record.Level
	}
	for severity, want := range map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warning": slog.LevelWarn, "error": slog.LevelError, "odd": slog.LevelInfo,
	} {
		if got := levels["a log of "+severity]; got != want {
			t.Errorf("the severity %s has the level %s", severity, got)
		}
	}
	e.await(t, plugin.EventDenied, nil)
}

// crowd is a repository that answers when so many ask at the same time.
type crowd struct {
	missing atomic.Int64
	all     chan struct{}
}

func (c *crowd) ListMetadata(ctx context.Context, _ plugin.Pin, _ []string, _ plugin.Page) ([]plugin.Metadata, string, error) {
	if c.missing.Add(-1) == 0 {
		close(c.all)
	}
	select {
	case <-c.all:
		return nil, "", nil
	case <-ctx.Done():
		return nil, "", ctx.Err()
	}
}

func TestCIPDManyCallsAtOnce(t *testing.T) {
	c := &crowd{all: make(chan struct{})}
	c.missing.Store(cipdCrowd)
	h := &Host{}
	if err := h.Initialize(plugin.Config{Repository: c}); err != nil {
		t.Fatal(err)
	}
	defer h.Close(context.Background())
	spec := self("cipd crowd")
	spec.Protocol = ProtocolCIPD
	p := launch(t, h, spec)
	if said := said(t, p)(); said != "<nil>" {
		t.Errorf("%d calls at once: %s", cipdCrowd, said)
	}
	done(t, p)
}

// giveAway launches a plugin of CIPD that tells its port and ticket.
func giveAway(t *testing.T, h *Host) (p *PluginProcess, port int, ticket string) {
	t.Helper()
	spec := self("cipd ticket")
	spec.Protocol = ProtocolCIPD
	p = launch(t, h, spec)
	var line struct {
		Port   int
		Ticket string
	}
	if err := json.Unmarshal([]byte(said(t, p)()), &line); err != nil {
		t.Fatal(err)
	}
	return p, line.Port, line.Ticket
}

func dialPort(t *testing.T, port int) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func cipdLog(c *grpc.ClientConn, ticket string) codes.Code {
	return status.Code(c.Invoke(cipdAs(ticket), "/cipd.plugin.Host/Log", &cipdv1.LogRequest{}, &emptypb.Empty{}))
}

func TestCIPDTickets(t *testing.T) {
	h := newHost(t)
	one, port, first := giveAway(t, h)
	_, same, second := giveAway(t, h)
	if port != same {
		t.Errorf("the host listens on the ports %d and %d", port, same)
	}
	c, other := dialPort(t, port), dialPort(t, port)
	if code := cipdLog(c, first); code != codes.OK {
		t.Errorf("a ticket: %v", code)
	}
	if code := cipdLog(c, second); code != codes.PermissionDenied {
		t.Errorf("the ticket of another plugin on the same connection: %v", code)
	}
	native := launch(t, h, self("ticket"))
	next := said(t, native)
	path, ticket := next(), next()
	if code := cipdLog(other, ticket); code != codes.PermissionDenied {
		t.Errorf("the ticket of a plugin that is none of CIPD: %v", code)
	}
	unix := dial(path)
	defer unix.Close()
	if code := status.Code(unix.Invoke(as(first), "/cipd.plugin.Host/Log", &cipdv1.LogRequest{}, &emptypb.Empty{})); code != codes.PermissionDenied {
		t.Errorf("a ticket of CIPD on the Unix socket: %v", code)
	}
	_ = one.Terminate(t.Context())
	if code := cipdLog(other, first); code != codes.PermissionDenied {
		t.Errorf("the ticket of a plugin that has ended: %v", code)
	}
	if code := cipdLog(other, second); code != codes.OK {
		t.Errorf("the ticket of the other one: %v", code)
	}
}

func TestCIPDStrangersDoNotKeepAPluginOut(t *testing.T) {
	h := newHost(t)
	_, port, ticket := giveAway(t, h)
	crowdOut(t, h, ProtocolCIPD, "tcp4", fmt.Sprintf("127.0.0.1:%d", port), func() bool {
		return cipdLog(dialPort(t, port), ticket) == codes.OK
	})
}

// TestStrangersDoNotKeepOthersOut: they are told that they are strangers, however many hold a connection.
func TestStrangersDoNotKeepOthersOut(t *testing.T) {
	h := newHost(t)
	_, loot := steal(t, h)
	crowdOut(t, h, ProtocolPatchbay, "unix", loot.socket, func() bool {
		return status.Code(loot.check(t, loot.ticket)) == codes.PermissionDenied
	})
}

// crowdOut has many strangers hold connections, and sees that one more is served and that the oldest goes.
func crowdOut(t *testing.T, h *Host, protocol Protocol, network, address string, served func() bool) {
	t.Helper()
	var strangers []net.Conn
	for range 2 * maxStrangers[protocol] {
		c, err := net.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		strangers = append(strangers, c)
	}
	await(t, served)
	h.server.mu.Lock()
	if n := len(h.server.strangers[protocol]); n > maxStrangers[protocol] {
		t.Errorf("%d strangers are connected", n)
	}
	h.server.mu.Unlock()
	if err := strangers[0].SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	// The oldest of them goes; what the server says first may be read before.
	for buffer := make([]byte, 1024); ; {
		if _, err := strangers[0].Read(buffer); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the oldest stranger is still connected")
			}
			break
		}
	}
}

func TestNoPortWithoutAPluginOfCIPD(t *testing.T) {
	h := newHost(t)
	p := launch(t, h, self("polite"))
	said(t, p)()
	if h.server.port != 0 {
		t.Error("the host listens on loopback, and nobody needs it")
	}
}
