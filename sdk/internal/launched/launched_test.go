package launched

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/launch/pluginlog"
	"github.com/patchbay-dev/patchbay/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// newSession returns a session with a host, and the end of its standard input.
func newSession(t *testing.T, stderr io.Writer) (*Session, io.Closer) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return New(handshake.Handshake{HostSocket: filepath.Join(t.TempDir(), "h"), Ticket: "t"}, r, stderr), w
}

func TestRunEndsWithStandardInput(t *testing.T) {
	s, stdin := newSession(t, io.Discard)
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
	s, _ := newSession(t, io.Discard)
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
	s, _ := newSession(t, io.Discard)
	func() {
		defer func() {
			if p := recover(); p != "oops" {
				t.Errorf("panic %v", p)
			}
		}()
		_ = s.Run(t.Context(), func(context.Context) error { panic("oops") })
	}()
	if err := s.Run(t.Context(), func(context.Context) error { return nil }); !errors.Is(err, errRunTwice) {
		t.Errorf("Run after a panic: %v", err)
	}
}

type nilText struct{ s string }

func (n *nilText) MarshalText() ([]byte, error) { return []byte(n.s), nil }

// TestLogHandler checks that a host reads each record as it was logged.
func TestLogHandler(t *testing.T) {
	s := Alone(nil)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for _, tc := range []struct {
		attr      slog.Attr
		key, want string // want with the kind
	}{
		{slog.Int("k", -1), "k", "Int64 -1"},
		{slog.Uint64("k", 1), "k", "Int64 1"},
		{slog.Uint64("k", math.MaxUint64), "k", "String 18446744073709551615"},
		{slog.Float64("k", 1.5), "k", "Float64 1.5"},
		{slog.Bool("k", true), "k", "Bool true"},
		{slog.Duration("k", time.Second), "k", "String 1s"},
		{slog.Time("k", at), "k", "String 2026-01-02T03:04:05.000000006Z"},
		{slog.Any("k", errors.New("e")), "k", "String e"},
		{slog.Any("k", net.IPv4(1, 2, 3, 4)), "k", "String 1.2.3.4"},
		{slog.Any("k", []int{1}), "k", "String [1]"},
		{slog.Any("k", (*nilText)(nil)), "k", "String null"},
		{slog.String("k", "a\xffb\n"), "k", "String a\uFFFDb" + `\n`},
		{slog.Group("k", "l", slog.GroupValue(slog.Int("m", 1))), "k.l.m", "Int64 1"},
	} {
		log := pluginlog.New("", nil, 0)
		s.stderr = writer(func(line []byte) error { return log.Drain(bytes.NewReader(line), pluginlog.Stderr) })
		slog.New(s.LogHandler(nil)).WithGroup("g").With("a", "b").Error("hello\n", tc.attr)
		slog.New(s.LogHandler(nil)).Debug("not logged")
		records := log.Tail(0)
		if len(records) != 1 || len(records[0].Attrs) != 2 {
			t.Fatalf("%v became %+v", tc.attr, records)
		}
		r := records[0]
		if r.Level != slog.LevelError || r.Message != `hello\n` || r.Attrs[0].String() != "g.a=b" || time.Since(r.Time) < 0 {
			t.Errorf("the record is %+v", r)
		}
		if got := r.Attrs[1]; got.Key != "g."+tc.key || fmt.Sprint(got.Value.Kind(), " ", got.Value) != tc.want {
			t.Errorf("%v became %v, want %s", tc.attr, got, tc.want)
		}
	}
}

type writer func([]byte) error

func (w writer) Write(p []byte) (int, error) { return len(p), w(p) }

func TestAlone(t *testing.T) {
	var stderr bytes.Buffer
	s := Alone(&stderr)
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
