package admission_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/sdk"
	"github.com/patchbay-dev/patchbay/sdk/admission"
	"github.com/patchbay-dev/patchbay/sdk/internal/launched"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// host serves the Admit stream with a function of the test's.
type host struct {
	pluginv1.UnimplementedAdmissionsServer
	pluginv1.UnimplementedHostServer
	admit func(stream admitStream) error
}

type admitStream = grpc.BidiStreamingServer[pluginv1.AdmitRequest, pluginv1.AdmitResponse]

func (h *host) Admit(stream admitStream) error { return h.admit(stream) }

func (h *host) Log(stream grpc.ClientStreamingServer[pluginv1.LogRequest, pluginv1.LogResponse]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return stream.SendAndClose(&pluginv1.LogResponse{})
		}
	}
}

// launch returns a context in which a plugin was launched by a host with this Admit, and closes its standard input.
func launch(t testing.TB, admit func(admitStream) error) (ctx context.Context, end func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "adm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "h")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Skip(err)
	}
	h := &host{admit: admit}
	server := grpc.NewServer()
	pluginv1.RegisterAdmissionsServer(server, h)
	pluginv1.RegisterHostServer(server, h)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-served })
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() { _ = w.Close() })
	t.Cleanup(end)
	session := launched.New(handshake.Handshake{HostSocket: path, Ticket: "t"}, r, io.Discard)
	return launched.With(t.Context(), session), end
}

// ask sends checks of packages p1, p2, … in batches and returns the answers by id.
func ask(stream admitStream, n, batch int) (map[uint64]*pluginv1.Resolution, error) {
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if first.Hello.GetProtocolVersion() != 1 {
		return nil, status.Errorf(codes.FailedPrecondition, "hello %v", first)
	}
	for id := uint64(1); id <= uint64(n); {
		response := &pluginv1.AdmitResponse{}
		for range min(batch, n+1-int(id)) {
			response.Admissions = append(response.Admissions, &pluginv1.Admission{
				Id: id, Pin: &pluginv1.Pin{PackageName: fmt.Sprint("p", id), InstanceId: "i"},
			})
			id++
		}
		if err := stream.Send(response); err != nil {
			return nil, err
		}
	}
	answers := map[uint64]*pluginv1.Resolution{}
	for len(answers) < n {
		request, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if request.Hello != nil {
			return nil, status.Error(codes.FailedPrecondition, "a second hello")
		}
		for _, r := range request.Resolutions {
			if answers[r.Id] != nil {
				return nil, status.Errorf(codes.Internal, "two answers for %d", r.Id)
			}
			answers[r.Id] = r
		}
	}
	return answers, nil
}

func TestAnswers(t *testing.T) {
	const n = 20_000
	var answers map[uint64]*pluginv1.Resolution
	ctx, end := launch(t, func(stream admitStream) (err error) {
		answers, err = ask(stream, n, 100)
		return errors.Join(err, status.Error(codes.Aborted, "that is all"))
	})
	defer end()
	var running, most atomic.Int64
	err := admission.Serve(ctx, func(_ context.Context, pin plugin.Pin, _ admission.Metadata) error {
		now := running.Add(1)
		defer running.Add(-1)
		for {
			if m := most.Load(); now <= m || most.CompareAndSwap(m, now) {
				break
			}
		}
		runtime.Gosched()
		if strings.HasSuffix(pin.PackageName, "7") {
			return errors.New(pin.String())
		}
		return nil
	}, admission.WithConcurrency(3))
	if err != nil {
		t.Fatal(err)
	}
	if len(answers) != n {
		t.Fatalf("%d answers, want %d", len(answers), n)
	}
	for id, r := range answers {
		want := codes.OK
		if id%10 == 7 {
			want = codes.PermissionDenied
		}
		if codes.Code(r.Code) != want || want != codes.OK && r.Message != fmt.Sprintf("p%d:i", id) {
			t.Fatalf("answer %v, want code %v", r, want)
		}
	}
	if got := most.Load(); got > 3 || got < 2 {
		t.Errorf("%d checks ran at once, want 3", got)
	}
}

func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		check   func() error
		code    codes.Code
		message string
	}{
		{func() error { return nil }, codes.OK, ""},
		{func() error { return errors.New("no") }, codes.PermissionDenied, "no"},
		{func() error { return status.Error(codes.Unavailable, "later") }, codes.Unavailable, "later"},
		{func() error { return fmt.Errorf("ask: %w", status.Error(codes.NotFound, "x")) }, codes.NotFound, "ask: rpc error"},
		{func() error { return fmt.Errorf("ask: %w", context.DeadlineExceeded) }, codes.DeadlineExceeded, "ask: context deadline"},
		{func() error { return context.Canceled }, codes.Canceled, "canceled"},
		{func() error { return okError{} }, codes.PermissionDenied, "claims to be OK"},
		{func() error { return errors.New("\xff") }, codes.PermissionDenied, "\uFFFD"},
		{func() error { panic("oops") }, codes.Internal, "panicked: oops"},
		{func() error { panic(nil) }, codes.Internal, "panicked"}, //nolint:govet // the case itself
		{func() error { return errors.New(strings.Repeat("x", 1<<20)) }, codes.PermissionDenied, "xxx"},
	} {
		var got *pluginv1.Resolution
		ctx, end := launch(t, func(stream admitStream) error {
			answers, err := ask(stream, 1, 1)
			got = answers[1]
			return errors.Join(err, status.Error(codes.Aborted, ""))
		})
		err := admission.Serve(ctx, func(context.Context, plugin.Pin, admission.Metadata) error { return tc.check() })
		end()
		if err != nil || got == nil || codes.Code(got.Code) != tc.code || !strings.Contains(got.Message, tc.message) {
			t.Errorf("answer %v, %v, want %v %q", got, err, tc.code, tc.message)
		}
		if len(got.GetMessage()) > 5000 {
			t.Errorf("a message of %d bytes", len(got.GetMessage()))
		}
	}
}

type okError struct{}

func (okError) Error() string              { return "claims to be OK" }
func (okError) GRPCStatus() *status.Status { return status.New(codes.OK, "fine") }

// TestSlowCheckHoldsUpNoOther has one check wait for all the others.
func TestSlowCheckHoldsUpNoOther(t *testing.T) {
	const n = 500
	ctx, end := launch(t, func(stream admitStream) error {
		_, err := ask(stream, n, n)
		return errors.Join(err, status.Error(codes.Aborted, ""))
	})
	defer end()
	var others sync.WaitGroup
	others.Add(n - 1)
	if err := admission.Serve(ctx, func(ctx context.Context, pin plugin.Pin, _ admission.Metadata) error {
		if pin.PackageName == "p1" {
			others.Wait()
		} else {
			others.Done()
		}
		return nil
	}, admission.WithConcurrency(2)); err != nil {
		t.Fatal(err)
	}
}

// TestEnds has the stream end for every reason.
func TestEnds(t *testing.T) {
	begun := make(chan struct{}, 10)
	waiting := func(ctx context.Context, _ plugin.Pin, _ admission.Metadata) error {
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	for name, tc := range map[string]struct {
		host func(stream admitStream, end func()) error
		want codes.Code
	}{
		"aborted":       {func(admitStream, func()) error { return status.Error(codes.Aborted, "") }, codes.OK},
		"not granted":   {func(admitStream, func()) error { return status.Error(codes.PermissionDenied, "no") }, codes.PermissionDenied},
		"unknown error": {func(admitStream, func()) error { return errors.New("broken") }, codes.Unknown},
		"standard input": {func(stream admitStream, end func()) error {
			end()
			<-stream.Context().Done()
			return nil
		}, codes.OK},
		"a check runs": {func(stream admitStream, end func()) error {
			_ = stream.Send(&pluginv1.AdmitResponse{Admissions: []*pluginv1.Admission{{Id: 1}}})
			<-begun
			end()
			<-stream.Context().Done()
			return nil
		}, codes.OK},
		"a check runs and it is aborted": {func(stream admitStream, _ func()) error {
			_ = stream.Send(&pluginv1.AdmitResponse{Admissions: []*pluginv1.Admission{{Id: 1}, {Id: 2}}})
			<-begun
			return status.Error(codes.Aborted, "")
		}, codes.OK},
	} {
		t.Run(name, func(t *testing.T) {
			var end func()
			ctx, end := launch(t, func(stream admitStream) error { return tc.host(stream, end) })
			err := admission.Serve(ctx, waiting, admission.WithVersion("1"))
			if status.Code(err) != tc.want {
				t.Errorf("Serve: %v, want code %v", err, tc.want)
			}
		})
	}
}

func TestMisuse(t *testing.T) {
	check := func(context.Context, plugin.Pin, admission.Metadata) error { return nil }
	if err := admission.Serve(t.Context(), nil); err == nil {
		t.Error("no check, no error")
	}
	if err := admission.Serve(t.Context(), check, admission.WithConcurrency(0)); err == nil {
		t.Error("no concurrency, no error")
	}
	if err := admission.Serve(t.Context(), check); !errors.Is(err, sdk.ErrNotLaunched) {
		t.Errorf("not launched: %v", err)
	}
}

// TestAnswersFitIntoMessages answers more at once than a message may hold.
func TestAnswersFitIntoMessages(t *testing.T) {
	const n = 3000
	var answers map[uint64]*pluginv1.Resolution
	ctx, end := launch(t, func(stream admitStream) (err error) {
		answers, err = ask(stream, n, n)
		return errors.Join(err, status.Error(codes.Aborted, ""))
	})
	defer end()
	long := errors.New(strings.Repeat("x", 4000))
	if err := admission.Serve(ctx, func(context.Context, plugin.Pin, admission.Metadata) error { return long }); err != nil {
		t.Fatal(err)
	}
	if len(answers) != n {
		t.Errorf("%d answers, want %d", len(answers), n)
	}
}

// BenchmarkAdmit is the rate of trivial checks through one stream, in batches as a busy host sends them; host and plugin share the process.
func BenchmarkAdmit(b *testing.B) {
	for _, batch := range []int{1, 64, 1024} {
		b.Run(fmt.Sprint(batch), func(b *testing.B) {
			ctx, end := launch(b, func(stream admitStream) error {
				if _, err := stream.Recv(); err != nil {
					return err
				}
				sent := make(chan error, 1)
				window := make(chan struct{}, 16<<10)
				go func() {
					for id := 0; id < b.N; {
						n := min(batch, b.N-id)
						admissions := make([]*pluginv1.Admission, n)
						for i := range admissions {
							window <- struct{}{}
							admissions[i] = &pluginv1.Admission{Id: uint64(id + i), Pin: &pluginv1.Pin{PackageName: "a/b", InstanceId: "i"}}
						}
						id += n
						if err := stream.Send(&pluginv1.AdmitResponse{Admissions: admissions}); err != nil {
							sent <- err
							return
						}
					}
					sent <- nil
				}()
				for answered := 0; answered < b.N; {
					request, err := stream.Recv()
					if err != nil {
						return err
					}
					answered += len(request.Resolutions)
					for range request.Resolutions {
						<-window
					}
				}
				return errors.Join(<-sent, status.Error(codes.Aborted, ""))
			})
			defer end()
			b.ReportAllocs()
			b.ResetTimer()
			if err := admission.Serve(ctx, func(context.Context, plugin.Pin, admission.Metadata) error { return nil }); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "checks/s")
		})
	}
}

// TestRefuses checks that Serve refuses what cannot work before it looks for a host.
func TestRefuses(t *testing.T) {
	admit := func(context.Context, plugin.Pin, admission.Metadata) error { return nil }
	for name, err := range map[string]error{
		"no check":               admission.Serve(t.Context(), nil),
		"no concurrency":         admission.Serve(t.Context(), admit, admission.WithConcurrency(0)),
		"a negative concurrency": admission.Serve(t.Context(), admit, admission.WithConcurrency(-1)),
		"a nil option":           admission.Serve(t.Context(), admit, nil),
		"a version of no text":   admission.Serve(t.Context(), admit, admission.WithVersion("a\x1b")),
		"a long version":         admission.Serve(t.Context(), admit, admission.WithVersion(strings.Repeat("v", 1<<20))),
	} {
		if err == nil || errors.Is(err, sdk.ErrNotLaunched) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
	if err := admission.Serve(t.Context(), admit); !errors.Is(err, sdk.ErrNotLaunched) {
		t.Errorf("without a host: %v", err)
	}
}

// rude is an error whose method Error panics.
type rude struct{}

func (rude) Error() string { panic("rude") }

// TestCallbacks has checks that panic or end their goroutine. Their package is refused, and as many checks as before can run at once.
func TestCallbacks(t *testing.T) {
	for want, fail := range map[string]func() error{
		"panicked: oops":      func() error { panic("oops") },
		"ended its goroutine": func() error { runtime.Goexit(); return nil },
		"panicked: rude":      func() error { return rude{} },
	} {
		ctx, end := launch(t, func(stream admitStream) error {
			answers, err := ask(stream, 3, 3)
			for _, r := range answers {
				if (r.Code == int32(codes.OK)) != (r.Id == 3) || r.Id != 3 && !strings.Contains(r.Message, want) {
					t.Errorf("%s: the answer is %v", want, r)
				}
			}
			return errors.Join(err, status.Error(codes.Aborted, ""))
		})
		err := admission.Serve(ctx, func(_ context.Context, pin plugin.Pin, _ admission.Metadata) error {
			if pin.PackageName == "p3" {
				return nil
			}
			return fail()
		}, admission.WithConcurrency(1))
		end()
		if err != nil {
			t.Error(err)
		}
	}
	ctx, _ := launch(t, func(stream admitStream) error { <-stream.Context().Done(); return nil })
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := admission.Serve(ended, func(context.Context, plugin.Pin, admission.Metadata) error { return nil }); err != nil {
		t.Errorf("with a context that has ended: %v", err)
	}
}
