package pluginlog

import (
	"context"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// Lines of 100 bytes, the newline included.
var (
	textLine = strings.Repeat("plugin says a few words ", 5)[:99] + "\n"
	jsonLine = `{"time":"2026-01-02T15:04:05.123456789Z","level":"INFO","msg":"volume published","id":"0123456","n":42}` + "\n"
)

// discard is a Handler that counts.
type discard struct{ n *atomic.Uint64 }

func (discard) Enabled(context.Context, slog.Level) bool { return true }
func (d discard) Handle(context.Context, slog.Record) error {
	d.n.Add(1)
	return nil
}
func (d discard) WithAttrs([]slog.Attr) slog.Handler { return d }
func (d discard) WithGroup(string) slog.Handler      { return d }

// BenchmarkCapture is row P13: lines written one by one to a pipe, until each has got to a handler that does nothing. The floor is
// the same pipe with a reader that looks at nothing.
func BenchmarkCapture(b *testing.B) {
	b.Run("floor", func(b *testing.B) {
		r, w := pipe(b)
		done := make(chan struct{})
		go func() {
			defer close(done)
			io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, make([]byte, fullBuffer))
		}()
		writeLines(b, w, textLine)
		<-done
	})
	for name, line := range map[string]string{"text": textLine, "json": jsonLine} {
		b.Run(name, func(b *testing.B) {
			var n atomic.Uint64
			l := newLog(settings{Handler: discard{&n}, Rate: -1})
			r, w := pipe(b)
			done := make(chan struct{})
			go func() {
				defer close(done)
				l.Drain(r, Stderr)
				l.Close(context.Background())
			}()
			writeLines(b, w, line)
			<-done
			b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "forwarded/s")
			b.ReportMetric(float64(l.missed)/float64(b.N), "missed/op")
		})
	}
}

func writeLines(b *testing.B, w *os.File, line string) {
	b.SetBytes(int64(len(line)))
	data := []byte(line)
	for b.Loop() {
		w.Write(data)
	}
	w.Close()
}

// BenchmarkFlood is what is drained from a plugin that prints as much as it can, in large writes.
func BenchmarkFlood(b *testing.B) {
	block := []byte(strings.Repeat(textLine, (64<<10)/len(textLine)))
	for name, config := range map[string]*settings{"floor": nil, "limited": {Handler: slog.DiscardHandler}, "unlimited": {Rate: -1}} {
		b.Run(name, func(b *testing.B) {
			r, w := pipe(b)
			done := make(chan struct{})
			go func() {
				defer close(done)
				drain(r, config)
			}()
			b.SetBytes(int64(len(block)))
			for b.Loop() {
				w.Write(block)
			}
			w.Close()
			<-done
		})
	}
}

// drain reads r into a log, or into nothing if config is nil.
func drain(r *os.File, config *settings) {
	if config == nil {
		growPipe(r)
		io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, make([]byte, fullBuffer))
		return
	}
	l := newLog(*config)
	l.Drain(r, Stderr)
	ctx, cancel := context.WithCancel(context.Background())
	if _, stuck := config.Handler.(blocking); stuck {
		cancel()
	}
	l.Close(ctx)
	cancel()
}

// blocking is a Handler that returns when release is closed.
type blocking struct {
	discard
	release chan struct{}
}

func (h blocking) Handle(context.Context, slog.Record) error {
	<-h.release
	return nil
}
func (h blocking) WithAttrs([]slog.Attr) slog.Handler { return h }

// BenchmarkParse is what taking a line apart costs the goroutine that reads it.
func BenchmarkParse(b *testing.B) {
	lines := map[string]string{
		"text":  textLine,
		"json":  jsonLine,
		"slog":  `time=2026-01-02T15:04:05.123456789Z level=INFO msg="volume published" id=0123456 n=42`,
		"hclog": `2026-01-02T15:04:05.123Z [INFO]  csi: volume published: id=0123456 n=42`,
		"klog":  `I0102 15:04:05.123456    1234 server.go:56] "volume published" id="0123456" n=42`,
	}
	for name, line := range lines {
		b.Run(name, func(b *testing.B) {
			e := entry{at: time.Now(), data: []byte(strings.TrimSuffix(line, "\n"))}
			b.ReportAllocs()
			b.SetBytes(int64(len(e.data)))
			var r plugin.LogRecord
			for b.Loop() {
				r = e.record(1, nil)
			}
			runtime.KeepAlive(r)
		})
	}
}

func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	return r, w
}
