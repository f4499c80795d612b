package pluginlog

import (
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-dev/patchbay/internal/fuzzcorpus"
	"github.com/patchbay-dev/patchbay/plugin"
)

func TestParse(t *testing.T) {
	arrival := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	stamp := time.Date(2026, 1, 2, 15, 4, 5, 123e6, time.UTC)
	str, num := slog.String, slog.Int64
	type attrs = []slog.Attr
	for _, test := range []struct {
		name, line string
		level      slog.Level
		message    string
		attrs      attrs
		time       time.Time // zero: of arrival
	}{
		{"plain", "listening on :80", 0, "listening on :80", nil, time.Time{}},
		{"indented", "\t  indented", 0, "\t  indented", nil, time.Time{}},
		{"the text format of hclog", `2026-01-02T15:04:05.123Z [WARN]  csi: cannot mount: path=/a`, 0,
			"2026-01-02T15:04:05.123Z [WARN]  csi: cannot mount: path=/a", nil, time.Time{}},
		{"equals", "a=1 b=2", 0, "a=1 b=2", nil, time.Time{}},
		{"escapes", "a\x00b\x1b[31mred\r\x7f\xffé\u0085\u202e\u2028世", 0, `a\x00b\x1b[31mred\r\x7f\xffé\u0085\u202e\u2028世`, nil, time.Time{}},
		{"invalid", "a\xffb", 0, `a\xffb`, nil, time.Time{}},

		{"slog JSON", `{"time":"2026-01-02T15:04:05.123Z","level":"WARN","msg":"a \"b\"","n":42,"f":1.5,"ok":true,"req":{"method":"GET","h":{"x":null}}}`,
			slog.LevelWarn, `a "b"`, attrs{num("n", 42), slog.Float64("f", 1.5), slog.Bool("ok", true), str("req.method", "GET"), str("req.h.x", "null")}, stamp},
		{"slog level with offset", `{"level":"ERROR+2","msg":"m"}`, slog.LevelError + 2, "m", nil, time.Time{}},
		{"zap", `{"level":"info","ts":1767366245.123,"logger":"l","caller":"a/b.go:1","msg":"m"}`,
			slog.LevelInfo, "m", attrs{slog.Float64("ts", 1767366245.123), str("logger", "l"), str("caller", "a/b.go:1")}, time.Time{}},
		{"zap with ISO 8601", `{"level":"dpanic","ts":"2026-01-02T15:04:05.123+0000","msg":"m"}`, levelFatal, "m", nil, stamp},
		{"zerolog", `{"level":"trace","time":1767366245,"message":"m"}`, levelTrace, "m", attrs{num("time", 1767366245)}, time.Time{}},
		{"logrus", `{"level":"warning","msg":"m","time":"2026-01-02T15:04:05Z"}`, slog.LevelWarn, "m", nil, stamp.Truncate(time.Second)},
		{"hclog JSON", `{"@level":"debug","@message":"m","@module":"csi","@timestamp":"2026-01-02T15:04:05.123000Z","k":[1,{"a":"]"}]}`,
			slog.LevelDebug, "m", attrs{str("module", "csi"), str("k", `[1,{"a":"]"}]`)}, stamp},
		{"pino", `{"level":50,"time":1767366245123,"msg":"m","big":123456789012345678901234567890}`,
			0, "m", attrs{num("level", 50), num("time", 1767366245123), str("big", "123456789012345678901234567890")}, time.Time{}},
		{"JSON with odd members", `{ "level" : "loud" , "msg" : "m", "time" : "noon", "msg" : "again", "o" : { } }` + "\t",
			0, "m", attrs{str("level", "loud"), str("time", "noon"), str("msg", "again"), str("o", "{ }")}, time.Time{}},
		{"JSON with escapes", `{"msg":"a\nb\u001b\ud83d\ude00","k\t":"é"}`, 0, `a\nb\x1b😀`, attrs{str("k\t", "é")}, time.Time{}},
		{"deep JSON", `{"msg":"m","a":{"b":{"c":{"d":{"e":{"f":1}}}}}}`, 0, "m", attrs{str("a.b.c.d.e", `{"f":1}`)}, time.Time{}},
		{"JSON with an empty key", `{"msg":"m","":{"level":"error"}}`, 0, "m", attrs{str("level", "error")}, time.Time{}},
		{"JSON with another level", `{"msg":"m","level":5}`, 0, "m", attrs{num("level", 5)}, time.Time{}},
		{"JSON that is no log", `{"a":1}`, 0, `{"a":1}`, nil, time.Time{}},
		{"two JSON values", `{"msg":"m"}{}`, 0, `{"msg":"m"}{}`, nil, time.Time{}},
		{"cut JSON", `{"level":"error","msg":"m`, 0, `{"level":"error","msg":"m`, nil, time.Time{}},

		{"slog text", `time=2026-01-02T15:04:05.123Z level=ERROR msg="a b" "k 1"=v req.id=7 empty=""`,
			slog.LevelError, "a b", attrs{str("k 1", "v"), str("req.id", "7"), str("empty", "")}, stamp},
		{"logfmt from the level on", `level=warn msg=m`, slog.LevelWarn, "m", nil, time.Time{}},
		{"broken logfmt", `time=now msg="m`, 0, `time=now msg="m`, nil, time.Time{}},
		{"klog", "E0102 15:04:05.123456    1234 server.go:56] cannot [mount] x: y", slog.LevelError, "cannot [mount] x: y",
			attrs{str("caller", "server.go:56")}, time.Time{}},
		{"structured klog", `W0102 15:04:05.123456       1 a.go:5] "Cannot \"mount\"" err="a b" n=1`, slog.LevelWarn, `Cannot "mount"`,
			attrs{str("caller", "a.go:5"), str("err", "a b"), str("n", "1")}, time.Time{}},
		{"structured klog without values", `F0102 15:04:05.123456       1 a.go:5] "m"`, levelFatal, "m", attrs{str("caller", "a.go:5")}, time.Time{}},
		{"half a klog", "E0102 15:04:05.123456", 0, "E0102 15:04:05.123456", nil, time.Time{}},
		{"log", "2009/11/10 23:00:00 hello", 0, "2009/11/10 23:00:00 hello", nil, time.Time{}},
		{"log with more", "2009/11/10 23:00:00.123456 INFO k=v", 0, "2009/11/10 23:00:00.123456 INFO k=v", nil, time.Time{}},
		{"slog through log", `2009/11/10 23:00:00 WARN two words a=1 b="x y"`, slog.LevelWarn, "two words", attrs{str("a", "1"), str("b", "x y")}, time.Time{}},
		{"log with nothing", "2009/11/10 23:00:00 ", 0, "2009/11/10 23:00:00 ", nil, time.Time{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := plugin.LogRecord{Seq: 3, Time: test.time, Level: test.level, Message: test.message, Attrs: test.attrs, Source: Stdout}
			if want.Time.IsZero() {
				want.Time = arrival
			}
			got := entry{at: arrival, data: []byte(test.line)}.record(3, nil)
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b slog.Value) bool { return a.Equal(b) })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestLevelOfStderr: a line on standard error is a warning unless the line says otherwise.
func TestLevelOfStderr(t *testing.T) {
	for line, want := range map[string]slog.Level{
		"cannot find the flux":                      slog.LevelWarn,
		"2009/11/10 23:00:00 hello":                 slog.LevelWarn,
		`{"msg":"m"}`:                               slog.LevelWarn,
		"time=2026-01-02T15:04:05Z msg=m":           slog.LevelWarn,
		`{"level":"debug","msg":"m"}`:               slog.LevelDebug,
		"I0102 15:04:05.123456 1 a.go:5] listening": slog.LevelInfo,
	} {
		got := entry{flags: sourceFlags(Stderr), at: time.Now(), data: []byte(line)}.record(3, nil)
		if got.Level != want || got.Source != Stderr {
			t.Errorf("%q on %s is logged as %s, want %s", line, got.Source, got.Level, want)
		}
	}
}

// seeds are lines of all kinds.
var seeds = []string{
	"plain", "{", `{"a":[1,]}`, `{"a":01}`, `{"a":-}`, `{"a":[}]}`, `{"a":1 2}`, `{"a":"\t"}`, `{"a":{}}x`, `{"msg":"a\ud83d\ude00","n":-1.5e3,"o":{"x":[{}]},"b":true,"z":null}`, `{"level":30,"time":1e300,"msg":"\xff"}`,
	`{"level":"info","ts":9007199254740993,"message":""}`, "2026-01-02T15:04:05Z [INFO] a: b=c", `time=x level=INFO msg="a\nb" k=`,
	`I0102 15:04:05.123456 1 a.go:5] "m" k="v"`, "2009/11/10 23:00:00 INFO m k=v", "[WARN] x", "panic: \x00\x1b[0m\u202e", "=", " = ", "msg==",
	"goroutine 1 [running]:", "main.f(...)", "SIG: x", "ERROR+99999999999999999999 x",
}

// FuzzParse: whatever a line is, what comes out of it is harmless.
func FuzzParse(f *testing.F) {
	for _, seed := range seeds {
		f.Add([]byte(seed))
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, line []byte) {
		if len(line) == 0 {
			return
		}
		new(trace).line(line)
		r := entry{at: time.Unix(0, 1), data: line}.record(1, nil)
		texts, size := []string{r.Message}, 0
		for _, attr := range r.Attrs {
			texts = append(texts, attr.Key, attr.Value.String())
		}
		for _, text := range texts {
			size += len(text)
			if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r != '\t' && !unicode.IsGraphic(r) }) {
				t.Errorf("%q holds what it should not", text)
			}
		}
		if limit := 40*len(line) + 100; size > limit {
			t.Errorf("%d bytes became %d", len(line), size)
		}
		if !representable(r.Time) {
			t.Errorf("time %v", r.Time)
		}
	})
}

// FuzzJSON: a line is taken for JSON when encoding/json does, and its members are the same.
func FuzzJSON(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed)
	}
	fuzzcorpus.Add(f)
	f.Fuzz(func(t *testing.T, line string) {
		if line == "" || line[0] != '{' {
			return
		}
		var got plugin.LogRecord
		p := jsonParser{line: line, record: &got, fields: &fields{time: true, level: true, message: true}}
		ok := p.object("", 0) && p.ended()
		if valid := json.Valid([]byte(line)); ok != valid {
			t.Fatalf("valid %v, read %v", valid, ok)
		}
		if !ok || !utf8.ValidString(line) {
			return
		}
		var want map[string]any
		decoder := json.NewDecoder(strings.NewReader(line))
		decoder.UseNumber()
		if err := decoder.Decode(&want); err != nil {
			t.Fatal(err)
		}
		read := map[string]slog.Value{}
		for _, attr := range p.attrs {
			read[attr.Key] = attr.Value // the last one of a key, as in a map
		}
		for key, value := range want {
			key = strings.TrimPrefix(clean(key), "@")
			if strings.Contains(line, `\`) || strings.ContainsAny(key, "@.") || strings.Count(line, `"`+key) > 1 {
				continue // keys that may be the same after all
			}
			switch value := value.(type) {
			case string:
				if got := read[key]; got.Kind() != slog.KindString || got.String() != clean(value) {
					t.Errorf("%q: %v, want %q", key, got, value)
				}
			case bool:
				if got := read[key]; got.Kind() != slog.KindBool || got.Bool() != value {
					t.Errorf("%q: %v, want %v", key, got, value)
				}
			case json.Number:
				if n, err := value.Int64(); err == nil && read[key].Kind() == slog.KindInt64 && read[key].Int64() != n {
					t.Errorf("%q: %v, want %v", key, read[key], value)
				}
			}
		}
	})
}

// TestGrowth: long keys around many members do not multiply.
func TestGrowth(t *testing.T) {
	line := `{"msg":"m","` + strings.Repeat("k", 30_000) + `":{` + strings.Repeat(`"a":1,`, 5000) + `"b":2}}`
	r := entry{data: []byte(line)}.record(1, nil)
	size := 0
	for _, attr := range r.Attrs {
		size += len(attr.Key) + len(attr.Value.String())
	}
	if size == 0 || size > len(line) {
		t.Errorf("%d bytes became %d", len(line), size)
	}
}

func TestTimes(t *testing.T) {
	want := time.Date(2026, 1, 2, 15, 4, 5, 123456000, time.UTC)
	for _, text := range []string{"2026-01-02T16:04:05.123456+01:00", "2026-01-02T16:04:05.123456+0100"} {
		if got, ok := parseTime(text); !ok || !got.Equal(want) {
			t.Errorf("%v: %v %v", text, got, ok)
		}
	}
	for _, text := range []string{"now", "0000-01-01T00:00:00Z", "9999-01-01T00:00:00Z"} {
		if got, ok := parseTime(text); ok {
			t.Errorf("%v: %v", text, got)
		}
	}
}
