package pluginlog

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/patchbay-dev/patchbay/plugin"
)

// messages returns the messages of records.
func messages(records []plugin.LogRecord) []string {
	texts := make([]string, len(records))
	for i, r := range records {
		texts[i] = r.Message
	}
	return texts
}

// settings are those of New, and sizes that only tests change. A zero size is the default.
type settings struct {
	Name                 string
	Handler              slog.Handler
	Rate                 int
	maxLine, burst, keep int
}

func newLog(s settings) *Log {
	l := New(s.Name, s.Handler, s.Rate)
	l.maxLine, l.burst, l.ring.keep = cmp.Or(s.maxLine, l.maxLine), cmp.Or(s.burst, l.burst), cmp.Or(s.keep, l.ring.keep)
	l.limiter = newLimiter(int(l.limiter.rate), l.burst)
	return l
}

func write(l *Log, text string) {
	s := stream{log: l, source: sourceFlags(Stdout)}
	s.write([]byte(text))
}

func TestTail(t *testing.T) {
	l := newLog(settings{})
	if got := l.Tail(0); len(got) != 0 {
		t.Errorf("an empty log has %v", got)
	}
	write(l, "a\nb\nc\n")
	for n, want := range map[int][]string{0: {"a", "b", "c"}, -1: {"a", "b", "c"}, 1: {"c"}, 2: {"b", "c"}, 9: {"a", "b", "c"}} {
		if diff := gocmp.Diff(want, messages(l.Tail(n))); diff != "" {
			t.Errorf("Tail(%d): %s", n, diff)
		}
	}
	if got := l.Tail(1)[0].Seq; got != 3 {
		t.Errorf("the third record has number %d", got)
	}
}

// TestForgery has a plugin log what would make its record one of another plugin, time or level.
func TestForgery(t *testing.T) {
	var buf bytes.Buffer
	l := newLog(settings{Name: "p", Handler: slog.NewJSONHandler(&buf, nil)})
	l.Add(plugin.LogRecord{Message: "m", Level: slog.LevelInfo, Source: RPC, Attrs: []slog.Attr{
		slog.String("plugin", "q"), slog.String("level", "ERROR"), slog.String("msg", "n"), slog.String("stream", "host"), slog.Int("time", 0), slog.Int("k", 1),
	}})
	l.Close(t.Context())
	var got map[string]any
	if err := json.Unmarshal(buf.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "time")
	want := map[string]any{"msg": "m", "level": "INFO", "plugin": "p", "stream": "log", "k": 1.0,
		"plugin.plugin": "q", "plugin.level": "ERROR", "plugin.msg": "n", "plugin.stream": "host", "plugin.time": 0.0}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAdd(t *testing.T) {
	var buf bytes.Buffer
	l := newLog(settings{Name: "p", Handler: slog.NewTextHandler(&buf, nil), maxLine: 100})
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l.Add(plugin.LogRecord{Time: at, Level: slog.LevelWarn, Message: "a\nb", Source: RPC, Attrs: []slog.Attr{
		slog.Int("n", 1), slog.Duration("d", time.Second), {}, slog.Any("e", errors.New("no")), slog.Uint64("u", math.MaxUint64), slog.Float64("f", .5), slog.Bool("b", true),
	}})
	l.Add(plugin.LogRecord{Message: strings.Repeat("é", 60), Source: RPC})
	l.Add(plugin.LogRecord{Message: "m", Source: RPC, Attrs: []slog.Attr{slog.String("k", strings.Repeat("x", 200))}})
	records := l.Tail(0)
	if r := records[0]; !r.Time.Equal(at) || r.Level != slog.LevelWarn || r.Message != `a\nb` || r.Source != RPC ||
		fmt.Sprint(r.Attrs) != "[n=1 d=1s e=no u=18446744073709551615 f=0.5 b=true]" {
		t.Errorf("%+v", r)
	}
	if r := records[1]; len(r.Message) != 100 || fmt.Sprint(r.Attrs) != "[cut=true]" || time.Since(r.Time) > time.Hour {
		t.Errorf("%+v", r)
	}
	if r := records[2]; r.Message != "m" || fmt.Sprint(r.Attrs) != "[cut=true]" {
		t.Errorf("%+v", r)
	}
	if s := l.Stats(); s.Lines != 3 || s.Cut != 2 {
		t.Errorf("%+v", s)
	}
	l.Close(t.Context())
	want := `time=2026-01-02T03:04:05.000Z level=WARN msg=a\nb plugin=p stream=log n=1 d=1s e=no u=18446744073709551615 f=0.5 b=true`
	if first, _, _ := strings.Cut(buf.String(), "\n"); first != want {
		t.Errorf("forwarded %s", first)
	}
	l.Add(plugin.LogRecord{Message: "late"})
	if got := l.Tail(1)[0].Message; got != "m" {
		t.Errorf("a closed log took %q", got)
	}
}

// TestFraming: however the bytes of some lines are read, the records are the same.
func TestFraming(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const maxLine = 20
		lines := rapid.SliceOf(rapid.SampledFrom([]string{
			"", " ", "short", "with\r", "twenty characters ok", "twenty characters ok\r", "twenty one characters", "\x00\x00", strings.Repeat("long ", 30), "x" + strings.Repeat("é", 11),
		})).Draw(t, "lines")
		ended := rapid.Bool().Draw(t, "ended")
		text := strings.Join(lines, "\n")
		if ended && len(lines) > 0 {
			text += "\n"
		}
		var want []string
		var cutLines uint64
		for _, line := range lines {
			line = strings.TrimSuffix(line, "\r")
			if strings.TrimSpace(line) == "" {
				continue
			}
			if len(line) > maxLine {
				cutLines++
				line = strings.ToValidUTF8(line[:maxLine], "")
			}
			want = append(want, clean(line))
		}

		l := newLog(settings{maxLine: maxLine, Rate: -1})
		s := stream{log: l}
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, min(60, len(rest))).Draw(t, "chunk")
			s.write([]byte(rest[:n]))
			rest = rest[n:]
		}
		s.end()
		if diff := gocmp.Diff(want, messages(l.Tail(0)), gocmp.Transformer("", func(s []string) string { return strings.Join(s, "\n") })); diff != "" {
			t.Fatal(diff)
		}
		total := uint64(len(lines))
		if n := len(lines); n > 0 && lines[n-1] == "" && !ended {
			total--
		}
		if s := l.Stats(); s.Cut != cutLines || s.Bytes != uint64(len(text)) || s.Lines != total {
			t.Fatalf("%+v for %d lines of %d bytes, of which %d are too long", s, total, len(text), cutLines)
		}
	})
}

// TestLimit: nothing is lost uncounted, whatever comes when.
func TestLimit(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		bubble(t, func(t *testing.T) {
			l := newLog(settings{Rate: 50, burst: 10, keep: 10 << 20})
			defer l.Close(t.Context())
			s := stream{log: l}
			var written uint64
			start := time.Now()
			for range rapid.IntRange(1, 20).Draw(rt, "steps") {
				for range rapid.SampledFrom([]int{0, 1, 5, 300, 3000}).Draw(rt, "lines") {
					written++
					s.write(fmt.Appendf(nil, "line %d %*d\n", written, rapid.SampledFrom([]int{1, 60}).Draw(rt, "width"), 0))
				}
				time.Sleep(rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Second, time.Minute}).Draw(rt, "pause"))
			}
			allowed := 10 + 50*time.Since(start).Seconds()
			unheld := uint64(len(l.Tail(0)))
			s.end()
			records := l.Tail(0)

			var lines []string
			var told uint64
			for _, r := range records {
				if r.Source == fromHost {
					told += uint64(r.Attrs[0].Value.Int64())
				} else {
					lines = append(lines, r.Message)
				}
			}
			stats := l.Stats()
			if stats.Lines != written || uint64(len(lines))+stats.Dropped != written || told != stats.Dropped {
				rt.Fatalf("%d written, %d kept, %d told, %+v", written, len(lines), told, stats)
			}
			if float64(unheld) > allowed+time.Since(start).Seconds()+1 {
				rt.Fatalf("%d records, %.0f allowed", unheld, allowed)
			}
			if n := len(lines); n > 0 && !strings.HasPrefix(lines[n-1], fmt.Sprintf("line %d ", written)) {
				rt.Fatalf("the last of %d lines is %q", written, lines[n-1])
			}
			number := 0
			for _, line := range lines {
				before := number
				if fmt.Sscanf(line, "line %d", &number); number <= before {
					rt.Fatalf("line %d after %d", number, before)
				}
			}
		})
	})
}

// TestFloodIsCounted: lines that are dropped by the thousand are counted one by one.
func TestFloodIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(settings{Rate: 1, burst: 10, keep: 1 << 20})
		defer l.Close(t.Context())
		s := stream{log: l}
		const lines = 100_000
		s.write(bytes.Repeat([]byte("flood\n"), lines))
		s.end()
		kept := uint64(len(l.Tail(0)) - 1)
		if last := uint64(lastWords / len("flood\n")); kept < 10+last || kept > 10+2*last {
			t.Errorf("%d lines are kept", kept)
		}
		if s := l.Stats(); s.Lines != lines || s.Dropped != lines-kept {
			t.Errorf("%+v with %d kept", s, kept)
		}
	})
}

// TestRefill: what the limit allows again comes in one piece.
func TestRefill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(settings{Rate: 100, burst: 10})
		for range 20 {
			write(l, "x\n")
		}
		for range 9 {
			time.Sleep(refill / 10)
			write(l, "x\n")
		}
		if n := len(l.Tail(0)); n != 10 {
			t.Errorf("%d lines", n)
		}
		time.Sleep(refill / 10)
		for range 20 {
			write(l, "x\n")
		}
		if n := len(l.Tail(0)); n != 20 {
			t.Errorf("%d lines", n)
		}
		s := stream{log: l}
		s.end()
		l.Close(t.Context())
	})
}

// TestCloseTells: what was dropped last is told too.
func TestCloseTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(settings{Rate: 1, burst: 1})
		for range 5 {
			l.Add(plugin.LogRecord{Message: "x"})
		}
		l.Close(t.Context())
		if r := l.Tail(1)[0]; r.Source != fromHost || fmt.Sprint(r.Attrs) != "[count=4]" {
			t.Errorf("%+v", r)
		}
	})
}

// TestLongLinesCount: a long line takes as much of the limit as many short ones.
func TestLongLinesCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(settings{Rate: 10, burst: 20})
		defer l.Close(t.Context())
		long := strings.Repeat("x", 30<<10) + "\n"
		write(l, long)
		write(l, "short\n")
		if n := len(l.Tail(0)); n != 1 {
			t.Errorf("%d lines passed", n)
		}
		time.Sleep(2 * time.Second)
		write(l, "short\n")
		if got := l.Tail(1)[0].Message; got != "short" {
			t.Errorf("%.9q came last", got)
		}
	})
}

// TestSummary: one record per second says what was dropped, without any further line.
func TestSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(settings{Rate: 1, burst: 1})
		defer l.Close(t.Context())
		s := stream{log: l}
		flood := bytes.Repeat([]byte("flood\n"), 100_000)
		for range 30 { // 3 s
			s.write(flood)
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		told := 0
		for _, r := range l.Tail(0) {
			if r.Source == fromHost {
				told++
			}
		}
		if told < 2 || told > 3 {
			t.Errorf("%d records in 3 s", told)
		}
		before := len(l.Tail(0))
		time.Sleep(time.Hour)
		if n := len(l.Tail(0)); n > before+1 {
			t.Errorf("%d records without a line", n-before)
		}
	})
}

func TestFollow(t *testing.T) {
	for n, want := range map[int]string{-1: "abcde", 0: "de", 2: "bcde", 9: "abcde"} {
		synctest.Test(t, func(t *testing.T) {
			l := newLog(settings{})
			write(l, "a\nb\nc\n")
			var got strings.Builder
			var follower sync.WaitGroup
			follower.Go(func() {
				for r := range l.Follow(t.Context(), n) {
					got.WriteString(r.Message)
				}
			})
			synctest.Wait()
			write(l, "d\n")
			synctest.Wait()
			write(l, "e\n")
			l.Close(t.Context())
			follower.Wait()
			if got.String() != want {
				t.Errorf("Follow(%d): %s", n, &got)
			}
		})
	}
}

func TestFollowEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(settings{})
		write(l, "a\nb\n")
		for range l.Follow(t.Context(), -1) {
			break
		}
		ctx, cancel := context.WithCancel(t.Context())
		var follower sync.WaitGroup
		follower.Go(func() {
			for range l.Follow(ctx, 0) {
				t.Error("there was nothing to follow")
			}
		})
		synctest.Wait()
		cancel()
		follower.Wait()
		for range l.Follow(ctx, -1) {
			t.Error("the context has ended")
		}
	})
}

// TestSlowFollower: a follower sees each record once and in order, or how many are missing, and does not delay the writer.
func TestSlowFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const total = 10_000
		l := newLog(settings{Rate: -1, keep: 20_000})
		var got uint64
		missed := false
		var follower sync.WaitGroup
		follower.Go(func() {
			for r := range l.Follow(t.Context(), -1) {
				if r.Source == fromHost {
					missed = true
					if gap := uint64(r.Attrs[0].Value.Int64()); got+gap != r.Seq {
						t.Errorf("%d missed between %d and %d", gap, got, r.Seq)
					}
				} else if r.Seq != got+1 || r.Message != fmt.Sprint(r.Seq) {
					t.Errorf("record %d, %q, after %d", r.Seq, r.Message, got)
				}
				got = r.Seq
				time.Sleep(time.Millisecond)
			}
		})
		start := time.Now()
		for i := range total {
			write(l, fmt.Sprintln(i+1))
			if i%1000 == 0 {
				time.Sleep(100 * time.Millisecond)
			}
		}
		if took := time.Since(start); took != total/1000*100*time.Millisecond {
			t.Errorf("the writer took %v", took)
		}
		l.Close(t.Context())
		follower.Wait()
		if got != total || !missed {
			t.Errorf("the last record was %d; missed some: %v", got, missed)
		}
	})
}

func bubble(t *testing.T, f func(t *testing.T)) {
	var failure any
	synctest.Test(t, func(t *testing.T) {
		defer func() { failure = recover() }()
		f(t)
	})
	if failure != nil {
		panic(failure)
	}
}
