//go:build unix

package activator_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/launch/activator"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/plugin"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// stage is a front, with what it stands before and who calls it.
type stage struct {
	t        *testing.T
	front    *activator.Front
	conn     *grpc.ClientConn
	demands  atomic.Int64
	unneeded chan *activator.Target
	begun    chan struct{} // calls of /test/Held
	// answer is what a demand is answered; nil if it is not.
	answer func(done func(error))
}

var info = plugin.Info{Type: "T", Name: "one", Versions: []string{"v1"}}

func newStage(t *testing.T, settings activator.Settings) *stage {
	s := &stage{t: t, unneeded: make(chan *activator.Target, 10), begun: make(chan struct{}, 10), answer: func(func(error)) {}}
	budget := h2proxy.NewBudget(h2proxy.DefaultLimits, 0, func(uint32, h2proxy.Reason, bool) {})
	s.front = activator.New("one", filepath.Join(t.TempDir(), "s"), budget, s, settings)
	if err := s.front.Open(t.Context(), info); err != nil {
		t.Fatal(err)
	}
	var err error
	s.conn, err = grpc.NewClient("unix:"+s.front.Path(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.conn.Close()
		if err := s.front.Shut(context.Background()); err != nil {
			t.Error(err)
		}
		s.front.Wait()
	})
	return s
}

// behind serves a process that answers each call of /test/Held when held is closed, and each of /test/Word with a word.
func (s *stage) behind(word string, held <-chan struct{}) *activator.Target {
	path := filepath.Join(s.t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		s.t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(stream); method == "/test/Held" {
			s.begun <- struct{}{}
			<-held
		}
		if err := stream.RecvMsg(new(wrapperspb.StringValue)); err != nil {
			return err
		}
		return stream.SendMsg(wrapperspb.String(word))
	}))
	healthpb.RegisterHealthServer(server, health.NewServer())
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	s.t.Cleanup(func() {
		server.Stop()
		serving.Wait()
	})
	client := h2proxy.NewClient(h2proxy.ClientConfig{
		Dial:    func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", path) },
		Timeout: 5 * time.Second, Idle: time.Minute,
	})
	s.t.Cleanup(func() { _ = client.Close() })
	return &activator.Target{
		Services: client,
		Notify:   func(context.Context, bool, string) error { return nil },
		Close:    func() { _ = client.Close() },
	}
}

// Demand implements [activator.Owner].
func (s *stage) Demand(done func(error)) (withdraw func(error)) {
	s.demands.Add(1)
	s.answer(done)
	return func(error) {}
}

// Unneeded implements [activator.Owner].
func (s *stage) Unneeded(target *activator.Target) {
	select {
	case s.unneeded <- target:
	default: // told often enough
	}
}

func (s *stage) call(method string, options ...grpc.CallOption) (string, error) {
	var word wrapperspb.StringValue
	err := s.conn.Invoke(s.t.Context(), method, wrapperspb.String(""), &word, options...)
	return word.GetValue(), err
}

// TestIdleness makes calls with short pauses: the process becomes idle only after the last call, when Idle has passed. If the process is
// kept, it is reported again.
func TestIdleness(t *testing.T) {
	s := newStage(t, activator.Settings{OnDemand: true, Idle: 20 * time.Millisecond, Patience: time.Minute})
	held := make(chan struct{})
	target := s.behind("a", held)
	s.front.Serve(target)
	for range 2 {
		if got := <-s.unneeded; got != target {
			t.Error("another process is idle")
		}
	}
	answered := make(chan error, 1)
	go func() {
		_, err := s.call("/test/Held")
		answered <- err
	}()
	<-s.begun
	for len(s.unneeded) > 0 {
		<-s.unneeded
	}
	<-time.After(100 * time.Millisecond)
	if len(s.unneeded) > 1 { // one report may have been on its way when the call began
		t.Error("it is idle in a call")
	}
	close(held)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	for range 2 {
		<-s.unneeded
	}
	if s.demands.Load() > 0 {
		t.Error("a process was demanded, and one serves")
	}
}

// TestRetire: calls under way end on the process on which they began, and the next wait for another one.
func TestRetire(t *testing.T) {
	s := newStage(t, activator.Settings{OnDemand: true, Idle: time.Hour, Patience: time.Minute})
	held := make(chan struct{})
	old := s.behind("old", held)
	s.front.Serve(old)
	first := make(chan string, 1)
	go func() {
		word, err := s.call("/test/Held")
		first <- word + errorText(err)
	}()
	<-s.begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.front.Retire(ctx, old)
	second, demanded := make(chan string, 1), make(chan struct{})
	s.answer = func(done func(error)) {
		done(nil)
		close(demanded)
	}
	go func() {
		word, err := s.call("/test/Word")
		second <- word + errorText(err)
	}()
	<-demanded
	s.front.Serve(s.behind("new", nil))
	if got := <-second; got != "new" {
		t.Errorf("got %s", got)
	}
	close(held)
	if got := <-first; got != "old" {
		t.Errorf("got %s", got)
	}
	s.front.Retire(t.Context(), old)
}

// TestMode: nobody but root and the host's user may call, in whose name the calls go on.
func TestMode(t *testing.T) {
	s := newStage(t, activator.Settings{})
	info, err := os.Lstat(s.front.Path())
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode(); got != fs.ModeSocket|0o600 {
		t.Errorf("the socket has mode %v", got)
	}
}

// TestLateProcess: a process that is met when its successor serves already gets no calls, and its end ends nothing.
func TestLateProcess(t *testing.T) {
	s := newStage(t, activator.Settings{})
	late, successor := s.behind("late", nil), s.behind("successor", nil)
	late.Generation, successor.Generation = 1, 2
	s.front.Serve(successor)
	s.front.Serve(late)
	s.front.Retire(t.Context(), late)
	if got, err := s.call("/test/Word"); got != "successor" || err != nil {
		t.Errorf("%q answers, %v, want the successor", got, err)
	}
	s.front.Retire(t.Context(), successor)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestWaiting: who waits for a process hears of the failure that came while he waited, of none before, and waits no longer than he may.
func TestWaiting(t *testing.T) {
	s := newStage(t, activator.Settings{OnDemand: true, Idle: time.Hour, Patience: 50 * time.Millisecond})
	s.front.Fail(errors.New("an earlier one"))
	if _, err := s.call("/test/Word"); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "not ready within 50ms") {
		t.Errorf("got %v", err)
	}
	if s.front.Needed() {
		t.Error("it is needed, and nobody waits")
	}
	s.answer = func(func(error)) { go s.front.Fail(errors.New("it has no fuel")) }
	if _, err := s.call("/test/Word"); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "it has no fuel") {
		t.Errorf("got %v", err)
	}
	s.answer = func(done func(error)) { done(errors.New("it was stopped")) }
	if _, err := s.call("/test/Word"); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "it was stopped") {
		t.Errorf("got %v", err)
	}
	s.front.Set(activator.Settings{Idle: time.Hour, Patience: time.Minute})
	demands := s.demands.Load()
	if _, err := s.call("/test/Word"); status.Code(err) != codes.Unavailable || s.demands.Load() != demands {
		t.Errorf("got %v, and %d demands", err, s.demands.Load()-demands)
	}
}

// TestRegistration: a front says who the plugin is, keeps what the host says for the next process, and starts none for a call after a
// refusal, until the host asks anew.
func TestRegistration(t *testing.T) {
	s := newStage(t, activator.Settings{OnDemand: true, Idle: time.Hour, Patience: 20 * time.Millisecond})
	host := registerapi.NewRegistrationClient(s.conn)
	got, err := host.GetInfo(t.Context(), &registerapi.InfoRequest{})
	if err != nil || got.GetType() != "T" || got.GetName() != "one" || len(got.GetSupportedVersions()) != 1 || got.GetEndpoint() != "" {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := host.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{Error: "not here"}); err != nil {
		t.Fatal(err)
	}
	if registered, reason, said := s.front.Status(); registered || reason != "not here" || !said {
		t.Errorf("it was told %t, %q, %t", registered, reason, said)
	}
	if _, err := s.call("/test/Word"); s.demands.Load() > 0 || !strings.Contains(errorText(err), "not here") {
		t.Errorf("got %v after a refusal, and %d demands", err, s.demands.Load())
	}
	if _, err := host.GetInfo(t.Context(), &registerapi.InfoRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := s.call("/test/Word"); err == nil || s.demands.Load() != 1 {
		t.Errorf("got %v, and %d demands", err, s.demands.Load())
	}
	if err := s.front.Check(plugin.Info{Type: "T", Name: "two"}); err == nil {
		t.Error("another plugin may serve")
	}
	if err := s.front.Check(plugin.Info{Type: "T", Name: "one", Versions: []string{"v2"}}); err != nil {
		t.Error(err)
	}
}

// TestMalformed: what is not a request that is answered here is refused, and costs nothing.
func TestMalformed(t *testing.T) {
	s := newStage(t, activator.Settings{OnDemand: true, Idle: time.Hour, Patience: time.Minute})
	long := &registerapi.RegistrationStatus{Error: strings.Repeat("x", 100<<10)}
	if _, err := registerapi.NewRegistrationClient(s.conn).NotifyRegistrationStatus(t.Context(), long); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("long: %v", err)
	}
	short := &registerapi.RegistrationStatus{Error: strings.Repeat("x", 1<<10)}
	_, err := registerapi.NewRegistrationClient(s.conn).NotifyRegistrationStatus(t.Context(), short, grpc.UseCompressor(gzip.Name))
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("compressed: %v", err)
	}
	if _, err := s.call("/pluginregistration.Registration/Other"); status.Code(err) != codes.Unimplemented {
		t.Errorf("other: %v", err)
	}
	stream, err := s.conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, "/pluginregistration.Registration/GetInfo")
	if err == nil {
		err = errors.Join(stream.CloseSend())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(new(registerapi.PluginInfo)); status.Code(err) != codes.InvalidArgument {
		t.Errorf("none: %v", err)
	}
	if s.demands.Load() > 0 {
		t.Error("a process was demanded")
	}
}

// TestAnotherAnnouncement: a front that says something else does so at a new socket, and nobody is refused there.
func TestAnotherAnnouncement(t *testing.T) {
	s := newStage(t, activator.Settings{OnDemand: true, Idle: time.Hour, Patience: time.Minute})
	s.front.Serve(s.behind("a", nil))
	stop := make(chan struct{})
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := s.call("/test/Word"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for i := range 50 {
		other := info
		if i%2 == 0 {
			other.Versions = []string{"v2"}
		}
		if err := s.front.Open(t.Context(), other); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	calls.Wait()
}

// TestLastProcess: when the last process goes and none is started on demand, callers are told to go elsewhere first, and nobody answers
// afterwards.
func TestLastProcess(t *testing.T) {
	s := newStage(t, activator.Settings{Patience: time.Minute})
	held := make(chan struct{})
	target := s.behind("a", held)
	s.front.Serve(target)
	if _, err := s.call("/test/Word"); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := s.call("/test/Held")
		answered <- err
	}()
	retired := make(chan struct{})
	<-s.begun
	time.AfterFunc(50*time.Millisecond, func() { close(held) })
	go func() {
		defer close(retired)
		s.front.Retire(t.Context(), target)
	}()
	if err := <-answered; err != nil {
		t.Error(err)
	}
	<-retired
	if conn, err := net.Dial("unix", s.front.Path()); err == nil {
		_ = conn.Close()
		t.Error("somebody answers")
	}
}
