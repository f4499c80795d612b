package runtime_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// lines keeps the lines of a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

// of returns the lines about a plugin, or about a socket, each as its level, its state or else its event, its type, and whether it names an
// instance and a reason.
func (l *lines) of(t *testing.T, key, value string) (all []string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.text.Bytes()) {
		var r map[string]any
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if r[key] != value || r["reason"] == nil {
			continue
		}
		word := r["state"]
		if word == nil {
			word = r["event"]
		}
		text := fmt.Sprintf("%v %v", r["level"], word)
		if r["type"] != nil {
			text += fmt.Sprintf(" %v", r["type"])
		}
		if r["instance"] != nil {
			text += " instance"
		}
		all = append(all, text)
	}
	return all
}

func loggingHost(t *testing.T) (*host, *lines) {
	log := &lines{}
	h := &host{
		t: t, dir: t.TempDir(), state: filepath.Join(t.TempDir(), "state.db"),
		logger: slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	h.start()
	t.Cleanup(func() { h.end() })
	return h, log
}

func check(t *testing.T, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("the log has\n%q, want\n%q", got, want)
	}
}

// TestEachStateIsOneLine: the logger of a Runtime has one line for each state of a plugin, with the same keys.
func TestEachStateIsOneLine(t *testing.T) {
	h, log := loggingHost(t)
	p := h.serve("foo", "foo.sock")
	h.await("registered", "foo")
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	h.await("deregistered", "foo")
	h.end()
	check(t, log.of(t, "socket", filepath.Join(h.dir, "foo.sock")), []string{
		"DEBUG connecting", "DEBUG validating T", "DEBUG registering T", "DEBUG notifying T instance", "INFO registered T instance",
		"INFO deregistered T instance",
	})
}

// TestRepeatsAreFolded: attempts that fail alike are told of by few lines, at whatever level.
func TestRepeatsAreFolded(t *testing.T) {
	h, log := loggingHost(t)
	elsewhere, path := filepath.Join(t.TempDir(), "dead.sock"), filepath.Join(h.dir, "dead.sock")
	listener, err := net.Listen("unix", elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(elsewhere, path); err != nil {
		t.Fatal(err)
	}
	h.until("the fifth attempt fails", func() bool {
		all := h.rt.Plugins()
		return len(all) == 1 && all[0].Attempts >= 5
	})
	h.end()
	check(t, log.of(t, "socket", path), []string{"DEBUG connecting", "WARN backoff", "WARN backoff"}) // of the first and the fourth
}

// TestLaunchedLinesSayWhat: the lines of a launched plugin also say as what it is registered.
func TestLaunchedLinesSayWhat(t *testing.T) {
	h, log := loggingHost(t)
	h.set(launchable("serve"))
	h.running("it runs")
	if err := h.rt.Launcher().Stop("unit"); err != nil {
		t.Fatal(err)
	}
	h.end()
	got := log.of(t, "plugin", "unit")
	for _, want := range []string{"INFO starting", "INFO running T instance", "INFO terminated T instance", "INFO stopped T"} {
		if !slices.Contains(got, want) {
			t.Errorf("the log has %q, not %q", got, want)
		}
	}
}
