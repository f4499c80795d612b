package pluginlog

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// reading is a Log that reads a pipe. Calling it waits until that has ended and returns its error.
func reading(t *testing.T, l *Log, source string) (r, w *os.File, ended func() error) {
	t.Helper()
	r, w = pipe(t)
	done := make(chan error, 1)
	go func() { done <- l.Drain(r, source) }()
	return r, w, func() error { return <-done }
}

func TestReadFromEnds(t *testing.T) {
	for name, end := range map[string]func(r, w *os.File){
		"EOF":      func(_, w *os.File) { w.Close() },
		"closed":   func(r, _ *os.File) { r.Close() },
		"deadline": func(r, _ *os.File) { r.SetReadDeadline(time.Now()) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLog(settings{})
			r, w, ended := reading(t, l, Stderr)
			io.WriteString(w, "one\nwithout an end")
			for range l.Follow(t.Context(), -1) {
				break
			}
			end(r, w)
			if err := ended(); err != nil {
				t.Error(err)
			}
			if got := strings.Join(messages(l.Tail(0)), "|"); got != "one|without an end" {
				t.Error(got)
			}
		})
	}
}

func TestReadFromFails(t *testing.T) {
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := newLog(settings{Name: "p"}).Drain(dir, Stdout); err == nil || !strings.Contains(err.Error(), "cannot read stdout of plugin p: ") {
		t.Error(err)
	}
}

// TestHostileOutput: what is no text blocks nothing, is bounded and is counted.
func TestHostileOutput(t *testing.T) {
	l := newLog(settings{})
	_, w, ended := reading(t, l, Stdout)
	const long = 10 << 20
	w.Write(bytes.Repeat([]byte("x"), long))
	io.WriteString(w, "\n")
	w.Write(make([]byte, 1000))
	io.WriteString(w, "\nlast\n")
	w.Close()
	if err := ended(); err != nil {
		t.Fatal(err)
	}
	records := l.Tail(0)
	if len(records) != 3 || len(records[0].Message) != maxLine || fmt.Sprint(records[0].Attrs) != "[cut=true]" ||
		records[1].Message != strings.Repeat(`\x00`, 1000) || records[2].Message != "last" {
		t.Errorf("%d records: %.200v", len(records), records)
	}
	if s := l.Stats(); s != (plugin.LogStats{Lines: 3, Bytes: long + 1 + 1000 + 1 + 5, Cut: 1}) {
		t.Errorf("%+v", s)
	}
}

// TestEndlessLine: a line is kept before its end if that does not come.
func TestEndlessLine(t *testing.T) {
	l := newLog(settings{maxLine: 100})
	_, w, ended := reading(t, l, Stdout)
	w.Write(make([]byte, 200))
	for r := range l.Follow(t.Context(), -1) {
		if len(r.Message) != 100*len(`\x00`) {
			t.Error(r)
		}
		break
	}
	w.Close()
	ended()
}

// TestFlood: a plugin that prints without pause is drained, whatever the Handler does, memory is bounded, and why it died is seen.
func TestFlood(t *testing.T) {
	release := make(chan struct{})
	for name, h := range map[string]slog.Handler{"discarding": slog.DiscardHandler, "stuck": blocking{release: release}} {
		t.Run(name, func(t *testing.T) {
			l := newLog(settings{Handler: h})
			_, w, ended := reading(t, l, Stderr)
			block := bytes.Repeat([]byte(textLine), 1000)
			const blocks = 2000 // 200 MB
			for range blocks {
				w.Write(block)
			}
			io.WriteString(w, "panic: the end\n\ngoroutine 1 [running]:\nmain.main()\n\t/main.go:1 +0x1")
			w.Close()
			ended()
			tail := l.Tail(5)
			want := []string{"panic: the end", "goroutine 1 [running]:", "main.main()", "\t/main.go:1 +0x1"}
			for i, r := range tail[len(tail)-4:] {
				if r.Message != want[i] || r.Level != slog.LevelError {
					t.Errorf("%+v", r)
				}
			}
			held := 0
			for _, s := range l.ring.segments {
				held += cap(s.data)
			}
			if held > keep+segmentSize {
				t.Errorf("%d bytes are held", held)
			}
			s := l.Stats()
			if s.Lines != blocks*1000+5 || s.Bytes != uint64(blocks*len(block)+len(strings.Join(want, "\n"))+1) || s.Dropped == 0 {
				t.Errorf("%+v", s)
			}
		})
	}
	close(release)
}

// TestClosedLogDrains: the plugin is not blocked by a Log that is closed.
func TestClosedLogDrains(t *testing.T) {
	l := newLog(settings{})
	l.Close(t.Context())
	_, w, ended := reading(t, l, Stdout)
	w.Write(bytes.Repeat([]byte(textLine), 100_000))
	w.Close()
	if err := ended(); err != nil || len(l.Tail(0)) != 0 {
		t.Error(err, l.Tail(1))
	}
}

// TestConcurrently: all methods at once.
func TestConcurrently(t *testing.T) {
	l := newLog(settings{Handler: slog.DiscardHandler, Rate: -1, keep: 50_000})
	ctx, cancel := context.WithCancel(t.Context())
	var writers, readers sync.WaitGroup
	for _, source := range []string{Stdout, Stderr} {
		_, w, ended := reading(t, l, source)
		writers.Go(func() {
			for i := range 3000 {
				fmt.Fprintln(w, source, i)
			}
			w.Close()
			ended()
		})
	}
	writers.Go(func() {
		for range 3000 {
			l.Add(plugin.LogRecord{Message: "rpc", Source: RPC, Attrs: []slog.Attr{slog.Int("n", 1)}})
		}
	})
	for range 3 {
		readers.Go(func() {
			last := uint64(0)
			for r := range l.Follow(ctx, -1) {
				if r.Seq <= last {
					t.Errorf("%d after %d", r.Seq, last)
				}
				last = r.Seq
			}
		})
	}
	readers.Go(func() {
		for ctx.Err() == nil {
			for i, records := 1, l.Tail(100); i < len(records); i++ {
				if records[i].Seq != records[i-1].Seq+1 {
					t.Errorf("%d after %d", records[i].Seq, records[i-1].Seq)
				}
			}
			l.Stats()
		}
	})
	writers.Wait()
	cancel()
	readers.Wait()
	l.Close(t.Context())
	if s := l.Stats(); s.Lines != 9000 {
		t.Errorf("%+v", s)
	}
}

const crashRole = "crash"

func init() { //nolint:gochecknoinits // Roles register themselves.

	roles[crashRole] = func() {
		fmt.Fprintln(os.Stderr, "starting")
		defer func() { panic("second\nin two lines") }()
		done := make(chan struct{})
		go func() { <-done }()
		var nobody *int
		fmt.Fprintln(io.Discard, *nobody) //nolint:govet // It is to crash.
	}
}

// TestCrash: the dump of a real process is an error from its first line to its last, in order.
func TestCrash(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := newLog(settings{})
	_, w, ended := reading(t, l, Stderr)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), roleVariable+"="+crashRole, "GOTRACEBACK=all")
	cmd.Stderr = w
	if err := cmd.Run(); err == nil {
		t.Fatal("it did not crash")
	}
	io.WriteString(w, "restarted\n")
	w.Close()
	ended()
	records := l.Tail(0)
	last := len(records) - 1
	if records[0].Level != slog.LevelWarn || records[last].Level != slog.LevelWarn || last < 10 {
		t.Errorf("%v", records)
	}
	var text strings.Builder
	for _, r := range records[1:last] {
		if r.Level != slog.LevelError {
			t.Errorf("no error: %q", r.Message)
		}
		fmt.Fprintln(&text, r.Message)
	}
	for _, want := range []string{"panic: runtime error: ", "[signal SIGSEGV", "in two lines\n", "goroutine 1 [running]:\n", "main_test.go:"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &text)
		}
	}
}

func TestTrace(t *testing.T) {
	var tr trace
	for _, test := range []struct {
		line string
		want bool
	}{
		{"hello", false},
		{"goroutine leak", false},
		{"SIGHUP received: reloading", false},
		{"SIGQUIT: quit", true},
		{"PC=0x46c881 m=0 sigcode=0", true},
		{"goroutine 0 gp=0x1 m=0 mp=0x2 [idle]:", true},
		{"runtime.futex(0x1, 0x80, 0x0, 0x0, 0x0, 0x0)", true},
		{"\t/usr/lib/go/src/runtime/sys_linux_amd64.s:558 +0x21", true},
		{"created by main.main in goroutine 1", true},
		{"rax    0xca", true},
		{"[INFO] up again (2)", false},
		{"fatal error: all goroutines are asleep - deadlock!", true},
		{`{"level":"info","msg":"m"}`, false},
		{"panic: x", true},
		{"2026/01/02 03:04:05 after it", false},
		{"more", false},
		{"WARNING: DATA RACE", true},
		{"Read at 0x00c000010000 by goroutine 7:", true},
		{"==================", true},
		{"fine", false},
	} {
		if got := tr.line([]byte(test.line)); got != test.want {
			t.Errorf("%q: %v", test.line, got)
		}
	}
	tr.line([]byte("panic: a very long message"))
	n := 1
	for tr.line([]byte("more of it")) {
		n++
	}
	if n != traceMessage+1 {
		t.Errorf("a message of %d lines", n)
	}
}
