package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/plugin"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// live publishes events to a Journal with a file, and returns a new Journal of that file and the log of the first.
func live(t *testing.T, path string, from, to int, change func(*keeper)) (*Journal, string) {
	t.Helper()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	j := New(logger, path, nil, nil)
	if change != nil {
		change(j.keeper)
	}
	for i := from; i < to; i++ {
		j.Publish(plugin.Event{Time: time.Unix(int64(i), 1).UTC(), Kind: "told", Type: "T", Name: fmt.Sprint(i), Message: "a\nb\x1b"})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	j.Run(ctx)
	j.Close()
	return New(logger, path, nil, nil), log.String()
}

func check(t *testing.T, j *Journal, from, to int) {
	t.Helper()
	events := j.Last(1 << 20)
	if len(events) != to-from {
		t.Fatalf("%d events, want %d", len(events), to-from)
	}
	for i, e := range events {
		if e.Seq != uint64(from+i+1) || e.Name != fmt.Sprint(from+i) || !e.Time.Equal(time.Unix(int64(from+i), 1)) || e.Message != "a\nb\x1b" {
			t.Fatalf("event %d is %+v", i, e)
		}
	}
}

// TestOutlives checks that a new Journal has the events of the file and continues their numbers.
func TestOutlives(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	j, _ := live(t, path, 0, 10, nil)
	check(t, j, 0, 10)
	j, _ = live(t, path, 10, 20, nil)
	check(t, j, 0, 20)
	j, _ = live(t, path, 20, history+20, nil)
	check(t, j, 20, history+20)
}

// TestTorn checks that incomplete lines and lines that are not events are skipped.
func TestTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	live(t, path, 0, 10, nil)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for torn := range 60 {
		if err := os.WriteFile(path, append(bytes.Clone(whole), whole[:torn]...), 0o600); err != nil {
			t.Fatal(err)
		}
		j, _ := live(t, path, 10, 12, nil)
		check(t, j, 0, 12)
	}
	text := append([]byte("\x00\xff\n{}\n[]\n\n"), whole...)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	j, _ := live(t, path, 10, 12, nil)
	check(t, j, 0, 12)
}

// TestRotates checks that there are two files of a bounded size.
func TestRotates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	for i := range 50 {
		live(t, path, i*10, i*10+10, func(k *keeper) { k.max = 2000 })
	}
	for _, file := range []string{path, older(path)} {
		if info, err := os.Stat(file); err != nil || info.Size() > 4000 {
			t.Errorf("%v, %v", info, err)
		}
	}
	events := New(slog.New(slog.DiscardHandler), path, nil, nil).Last(1 << 20)
	if len(events) < 10 || events[len(events)-1].Seq != 500 {
		t.Errorf("%d events, the last is %+v", len(events), events[max(0, len(events)-1):])
	}
}

// TestCannotWrite checks that a failure to write is logged once, that later events are written, and that the recovery is logged.
func TestCannotWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	path := filepath.Join(dir, "events")
	var log bytes.Buffer
	k := newKeeper(path, slog.New(slog.NewTextHandler(&log, nil)))
	for range 3 {
		k.report(&k.writing, k.write([]plugin.Event{{Seq: 1}}))
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	k.report(&k.writing, k.write([]plugin.Event{{Seq: 2, Kind: "told"}}))
	if got := log.String(); strings.Count(got, "cannot be written") != 1 || strings.Count(got, "written again") != 1 {
		t.Errorf("the log is %s", got)
	}
	if events, err := load(path); err != nil || len(events) != 1 {
		t.Errorf("%v, %v", events, err)
	}
}

// TestWritesLater checks that events that could not be written are written later, without another event, and once.
func TestWritesLater(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		away := filepath.Join(dir, "later")
		path := filepath.Join(away, "events")
		var log bytes.Buffer
		k := newKeeper(path, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { k.run(ctx) })
		defer running.Wait()
		defer stop()
		now := time.Now()
		for seq := range uint64(history + 3) {
			k.add(plugin.Event{Seq: seq + 1, Kind: "told", Time: now})
			if seq%1000 == 0 {
				synctest.Wait()
			}
		}
		time.Sleep(time.Minute)
		if message, _ := k.trouble(); !strings.Contains(message, "would be missing after a restart") {
			t.Errorf("the trouble is %q", message)
		}
		if err := os.Mkdir(away, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(again.Max)
		synctest.Wait()
		if message, _ := k.trouble(); message != "" {
			t.Errorf("the trouble is %q", message)
		}
		if err := k.append([]byte(`{"seq":7,"time":"` + now.Format(time.RFC3339Nano) + `","kind":"told"}` + "\n")); err != nil {
			t.Fatal(err)
		}
		events, err := load(path)
		if err != nil || len(events) != history || events[0].Seq != 4 {
			t.Errorf("%d events, %v", len(events), err)
		}
		if text := log.String(); strings.Count(text, "missing=3") != 1 || strings.Count(text, "cannot be written") != 1 {
			t.Errorf("the log is %s", text)
		}
	})
}

// TestReadsAgain checks that a failed read of past events is retried until it succeeds, without another call of All.
func TestReadsAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		j := New(slog.New(slog.NewTextHandler(&log, nil)), path, nil, nil)
		defer j.Close()
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { j.Run(ctx) })
		defer running.Wait()
		defer stop()
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := j.All(); err == nil {
			t.Error("a directory was read")
		}
		time.Sleep(time.Minute)
		if message, _, _ := j.Trouble(); !strings.Contains(message, "cannot be read") {
			t.Errorf("the trouble is %q", message)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(again.Max)
		synctest.Wait()
		if message, _, _ := j.Trouble(); message != "" {
			t.Errorf("the trouble is %q", message)
		}
		if text := log.String(); strings.Count(text, "cannot be read") != 1 || strings.Count(text, "can be read again") != 1 {
			t.Errorf("the log is %s", text)
		}
	})
}

// TestDeviceIsAway checks that no file is created in the mount point while the device is not mounted, and that writing continues when it is
// mounted again.
func TestDeviceIsAway(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	mount := func(from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "events")
	k := newKeeper(path, slog.New(slog.DiscardHandler))
	tell := func(seq uint64) error { return k.write([]plugin.Event{{Seq: seq, Kind: "told"}}) }
	if err := tell(1); err != nil {
		t.Fatal(err)
	}
	mount(dir, dir+".away")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := tell(2); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in another directory: %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Errorf("something was made where the device was: %v", err)
	}
	mount(dir+".away", dir)
	if err := tell(3); err != nil {
		t.Error(err)
	}
	if events, err := load(path); err != nil || len(events) != 2 || events[1].Seq != 3 {
		t.Errorf("%v, %v", events, err)
	}
}

// TestCannotRead checks that a file that cannot be read is not changed, and that the Journal works without it.
func TestCannotRead(t *testing.T) {
	path := t.TempDir() // a directory
	var log bytes.Buffer
	j := New(slog.New(slog.NewTextHandler(&log, nil)), path, nil, nil)
	j.Publish(plugin.Event{Kind: "told"})
	if len(j.Last(9)) != 1 || j.keeper != nil || !strings.Contains(log.String(), "cannot be read") {
		t.Errorf("%v, %s", j.Last(9), log.String())
	}
}

// TestTooManyPending checks that the oldest pending events are dropped, and that their number is logged.
func TestTooManyPending(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	j, log := live(t, path, 0, history+5, nil)
	check(t, j, 5, history+5)
	if !strings.Contains(log, "missing=5") {
		t.Errorf("the log is %s", log)
	}
}

// TestAllEvents checks that events that are not in memory any more are read from the file, and that LaunchedAs knows a launched plugin
// after a restart.
func TestAllEvents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	begin := func() (*Journal, func()) {
		j := New(slog.New(slog.DiscardHandler), path, nil, nil)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { j.Run(ctx); close(ended) }()
		return j, func() { cancel(); <-ended; j.Close() }
	}
	j, end := begin()
	j.Observe(plugin.Event{Kind: plugin.EventRegistered, Type: "T", Name: "n", Instance: "i", SocketPath: "/s"})
	j.ObserveLaunched(plugin.Event{Kind: plugin.EventReady, Name: "unit", SocketPath: "/s"})
	end()
	j, end = begin()
	for range history + 100 {
		j.Publish(plugin.Event{Kind: "k", Type: "T", Name: "other"})
	}
	all, err := j.All()
	if err != nil || len(all) < history+2 || all[0].Seq != 1 || all[len(all)-1].Seq != history+102 {
		t.Errorf("%d events, %v", len(all), err)
	}
	for i, e := range all[1:] {
		if e.Seq <= all[i].Seq {
			t.Fatalf("event %d follows %d", e.Seq, all[i].Seq)
		}
	}
	if name, known := j.LaunchedAs("unit"); name != (plugin.Name{Type: "T", Name: "n"}) || !known {
		t.Errorf("it is %s, %v", name, known)
	}
	end()
}

// TestTrouble checks that Trouble returns a problem for as long as it lasts.
func TestTrouble(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	j := New(slog.New(slog.DiscardHandler), path, nil, nil)
	if message, _, kept := j.Trouble(); message != "" || !kept {
		t.Errorf("%q, %v", message, kept)
	}
	j.keeper.report(&j.keeper.writing, errors.New("the disk is full"))
	if message, since, _ := j.Trouble(); !strings.Contains(message, "the disk is full; check that there is space") || since.IsZero() {
		t.Errorf("%q since %v", message, since)
	}
	j.keeper.report(&j.keeper.writing, nil)
	if message, since, _ := j.Trouble(); message != "" || !since.IsZero() {
		t.Errorf("%q since %v", message, since)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := j.All(); err == nil {
		t.Error("a directory was read")
	}
	if message, since, _ := j.Trouble(); !strings.Contains(message, "check that the file can be read") || since.IsZero() {
		t.Errorf("%q since %v", message, since)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := j.All(); err != nil {
		t.Error(err)
	}
	if message, _, _ := j.Trouble(); message != "" {
		t.Errorf("%q", message)
	}
	j.Close()
	j = New(slog.New(slog.DiscardHandler), t.TempDir(), nil, nil) // a directory is not a file of events
	defer j.Close()
	if message, since, kept := j.Trouble(); !strings.Contains(message, "cannot be read") || since.IsZero() || !kept {
		t.Errorf("%q since %v, %v", message, since, kept)
	}
}
