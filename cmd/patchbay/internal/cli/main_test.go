package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/patchbay-dev/patchbay/cmd/patchbay/internal/hangup"
	"github.com/patchbay-dev/patchbay/internal/config"
)

func TestUntilSignal(t *testing.T) {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	abandoned := make(chan struct{})
	ctx, stop := untilSignal(t.Context(), true, func() { close(abandoned) })
	if err := self.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	select {
	case <-abandoned:
		t.Error("abandoned after one signal")
	default:
	}
	if err := self.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	<-abandoned
	stop()

	ctx, stop = untilSignal(t.Context(), true, func() { t.Error("abandoned without a signal") })
	stop()
	if ctx.Err() == nil {
		t.Error("the context outlives stop")
	}
	if signal.Ignored(os.Interrupt) {
		t.Error("signals have no effect after stop")
	}
}

// TestHangups sends SIGHUP to a command that it does not end, and to one that it does.
func TestHangups(t *testing.T) {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	send := func(sig os.Signal) {
		if err := self.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := untilSignal(t.Context(), false, func() { t.Error("abandoned") })
	for range 3 {
		send(syscall.SIGHUP)
		<-hangup.Signals
	}
	for range 1000 {
		send(syscall.SIGHUP)
	}
	<-hangup.Signals // many are one, or a few
	if ctx.Err() != nil {
		t.Error("SIGHUP ends the context")
	}
	send(syscall.SIGTERM)
	<-ctx.Done()
	stop()

	send(syscall.SIGHUP)
	ctx, stop = untilSignal(t.Context(), true, func() { t.Error("abandoned") })
	<-ctx.Done()
	stop()
}

func TestInterrupted(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "control.sock")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	code := Run(ctx, []string{"wait", "CSIPlugin/x", "--control-socket", socket}, &stdout, &stderr)
	if code != exitFailed || stderr.String() != "patchbay: interrupted\n" || stdout.Len() > 0 {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, &stdout, &stderr)
	}
}

func TestNewLogger(t *testing.T) {
	var out bytes.Buffer
	log, set := newLogger(&out, config.Log{Level: "warn", Format: "auto"})
	log.Info("too little")
	log.Warn("enough")
	var record struct{ Msg string }
	if err := json.Unmarshal(out.Bytes(), &record); err != nil || record.Msg != "enough" {
		t.Errorf("logged %q, want one record as JSON", &out)
	}
	out.Reset()
	derived := log.With("a", 1).WithGroup("g")
	set(config.Log{Level: "debug", Format: "text"})
	derived.Debug("all", "b", 2)
	if !bytes.Contains(out.Bytes(), []byte("level=DEBUG msg=all a=1 g.b=2")) {
		t.Errorf("logged %q, want text", &out)
	}
	set(config.Log{Level: "error", Format: "json"})
	if log.Enabled(t.Context(), slog.LevelWarn) {
		t.Error("warnings are logged at level error")
	}
}

// TestClosedPipe writes to a pipe without a reader, in a process that SIGPIPE does not end.
func TestClosedPipe(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	if code := Run(t.Context(), []string{"version"}, writer, &stderr); code != exitDone || stderr.Len() > 0 {
		t.Errorf("exit code %d, stderr %q", code, &stderr)
	}
}
