package launched

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/slogtest"
	"time"

	"google.golang.org/grpc"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// logHost takes logs; while it is deaf it reads nothing.
type logHost struct {
	pluginv1.UnimplementedHostServer
	deaf chan struct{} // closed when it listens

	mu      sync.Mutex
	records []*pluginv1.LogRecord
	batches int
}

func (h *logHost) Log(stream grpc.ClientStreamingServer[pluginv1.LogRequest, pluginv1.LogResponse]) error {
	for {
		select {
		case <-h.deaf:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&pluginv1.LogResponse{})
		}
		if err != nil {
			return err
		}
		h.mu.Lock()
		h.records = append(h.records, request.Records...)
		h.batches++
		h.mu.Unlock()
	}
}

// has reports whether the last record says so.
func (h *logHost) has(text string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.records) > 0 && strings.Contains(h.records[len(h.records)-1].Message, text)
}

// newSession returns a session with a host, and the end of its standard input.
func newSession(t *testing.T, stderr io.Writer) (*Session, *logHost, io.Closer) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sdk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listener, err := net.Listen("unix", filepath.Join(dir, "h"))
	if err != nil {
		t.Skip(err)
	}
	h := &logHost{deaf: make(chan struct{})}
	server := grpc.NewServer()
	pluginv1.RegisterHostServer(server, h)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-served })
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return New(handshake.Handshake{HostSocket: filepath.Join(dir, "h"), Ticket: "t"}, r, stderr), h, w
}

func TestRunEndsWithStandardInput(t *testing.T) {
	s, _, stdin := newSession(t, io.Discard)
	if err := s.Run(t.Context(), func(ctx context.Context) error {
		_ = stdin.Close()
		<-ctx.Done()
		return context.Cause(ctx)
	}); !errors.Is(err, errStopped) {
		t.Errorf("Run: %v", err)
	}
	if err := s.Run(t.Context(), func(context.Context) error { return nil }); !errors.Is(err, errRunTwice) {
		t.Errorf("second Run: %v", err)
	}
}

func TestRunsNest(t *testing.T) {
	s, _, _ := newSession(t, io.Discard)
	ran := false
	if err := s.Run(t.Context(), func(ctx context.Context) error {
		return s.Run(ctx, func(ctx context.Context) error {
			got, err := From(ctx)
			ran = got == s
			return err
		})
	}); err != nil || !ran {
		t.Errorf("Run: %v, ran with the session: %v", err, ran)
	}
}

// TestRunEndsWithItsFunction returns although nobody ends standard input, and also when the function panics.
func TestRunEndsWithItsFunction(t *testing.T) {
	s, h, _ := newSession(t, io.Discard)
	close(h.deaf)
	func() {
		defer func() {
			if p := recover(); p != "oops" {
				t.Errorf("panic %v", p)
			}
		}()
		_ = s.Run(t.Context(), func(context.Context) error {
			slog.New(s.LogHandler(nil)).Info("before the panic")
			panic("oops")
		})
	}()
	if len(h.records) != 1 {
		t.Errorf("%d records reached the host, want 1", len(h.records))
	}
}

// TestDeafHost never blocks the plugin: what does not fit is counted, and the end of the plugin does not wait for long.
func TestDeafHost(t *testing.T) {
	var stderr bytes.Buffer
	s, h, _ := newSession(t, &stderr)
	const records, size = 3000, 8 << 10
	if err := s.Run(t.Context(), func(context.Context) error {
		log := slog.New(s.LogHandler(nil))
		for i := range records {
			log.Info(strings.Repeat("x", size), "i", i)
		}
		close(h.deaf) // it takes the rest
		for deadline := time.Now().Add(20 * time.Second); !h.has("were dropped") && time.Now().Before(deadline); {
			runtime.Gosched()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	last := h.records[len(h.records)-1]
	var dropped int
	if _, err := fmt.Sscanf(last.Message, "%d log records were dropped", &dropped); err != nil {
		t.Fatalf("the last record is %.100q, want one that counts what was dropped", last.Message)
	}
	if got := dropped + len(h.records) - 1; got != records || dropped == 0 {
		t.Errorf("%d records came and %d were dropped, want %d together", len(h.records)-1, dropped, records)
	}
	if h.batches > len(h.records)/10 {
		t.Errorf("%d messages for %d records", h.batches, len(h.records))
	}
	if stderr.Len() > 0 {
		t.Errorf("standard error has %.100q", stderr.String())
	}
}

// TestDeafHostAtTheEnd has what the host does not take within the flush time on standard error, and later records too.
func TestDeafHostAtTheEnd(t *testing.T) {
	var stderr bytes.Buffer
	s, _, _ := newSession(t, &stderr)
	log := slog.New(s.LogHandler(nil))
	const records = 100
	if err := s.Run(t.Context(), func(context.Context) error {
		for range records {
			log.Info(strings.Repeat("x", maxText))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	before := strings.Count(stderr.String(), "\n")
	log.Info("late")
	if !strings.Contains(stderr.String(), `"msg":"late"`) {
		t.Error("a record after the end is not on standard error")
	}
	if before == 0 {
		t.Error("nothing of what the host did not take is on standard error")
	}
}

// TestHandler has the records of the suite of log/slog go to the host's form and back.
func TestHandler(t *testing.T) {
	var q *logQueue
	slogtest.Run(t, func(*testing.T) slog.Handler {
		q = newLogQueue(io.Discard)
		return &logHandler{queue: q, level: slog.LevelInfo}
	}, func(t *testing.T) map[string]any {
		var out bytes.Buffer
		r := ToSlog(q.records[0])
		if err := slog.NewJSONHandler(&out, nil).Handle(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		var flat map[string]any
		if err := json.Unmarshal(out.Bytes(), &flat); err != nil {
			t.Fatal(err)
		}
		nested := map[string]any{}
		for key, value := range flat {
			at := nested
			parts := strings.Split(key, ".")
			for _, part := range parts[:len(parts)-1] {
				if at[part] == nil {
					at[part] = map[string]any{}
				}
				at = at[part].(map[string]any)
			}
			at[parts[len(parts)-1]] = value
		}
		return nested
	})
}

type nilText struct{ s string }

func (n *nilText) MarshalText() ([]byte, error) { return []byte(n.s), nil }

func TestAttributes(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for _, tc := range []struct {
		attr slog.Attr
		want string
	}{
		{slog.Int("k", -1), "integer:-1"},
		{slog.Uint64("k", 1), "integer:1"},
		{slog.Uint64("k", math.MaxUint64), `text:"18446744073709551615"`},
		{slog.Float64("k", 1.5), "number:1.5"},
		{slog.Bool("k", true), "truth:true"},
		{slog.Duration("k", time.Second), `text:"1s"`},
		{slog.Time("k", at), `text:"2026-01-02T03:04:05.000000006Z"`},
		{slog.Any("k", errors.New("e")), `text:"e"`},
		{slog.Any("k", net.IPv4(1, 2, 3, 4)), `text:"1.2.3.4"`},
		{slog.Any("k", []int{1}), `text:"[1]"`},
		{slog.Any("k", (*nilText)(nil)), `!PANIC`},
		{slog.String("k", "a\xffb"), "text:\"a\uFFFDb\""},
	} {
		got := appendAttr(nil, "", tc.attr)
		if len(got) != 1 || got[0].Key != "k" || !strings.Contains(strings.Join(strings.Fields(got[0].String()), ""), strings.ReplaceAll(tc.want, " ", "")) {
			t.Errorf("%v became %v, want %s", tc.attr, got, tc.want)
		}
	}
	if got := text(strings.Repeat("é", maxText)); len(got) > maxText+10 {
		t.Errorf("%d bytes are left of a long text", len(got))
	}
}

func TestAlone(t *testing.T) {
	var stderr bytes.Buffer
	s := Alone(&stderr)
	if _, err := s.Conn(); !errors.Is(err, ErrNotLaunched) {
		t.Errorf("Conn: %v", err)
	}
	if _, ok := s.Handshake(); ok {
		t.Error("there is a handshake")
	}
	log := slog.New(s.LogHandler(slog.LevelDebug))
	for range 2 {
		if err := s.Run(t.Context(), func(context.Context) error { log.Debug("hello"); return nil }); err != nil {
			t.Error(err)
		}
	}
	if strings.Count(stderr.String(), `"msg":"hello"`) != 2 {
		t.Errorf("standard error: %s", stderr.String())
	}
}
