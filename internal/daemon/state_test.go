package daemon

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// TestStateWatch: however often the file fails, there is one condition, one event and one line of log until it can be written again.
func TestStateWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []plugin.EventKind
		var log lockedBuilder
		broken := errors.New("input/output error")
		var w *stateWatch
		var device atomic.Bool // it works
		var checks atomic.Int32
		w = newStateWatch("/state.db", func() error {
			checks.Add(1)
			if device.Load() {
				return nil
			}
			w.failed(broken)
			return broken
		}, slog.New(slog.NewTextHandler(&log, nil)))
		defer w.start(t.Context(), func(e plugin.Event) {
			log.Lock()
			defer log.Unlock()
			events = append(events, e.Kind)
		})()

		time.Sleep(time.Hour)
		if c := w.get(); !c.OK || checks.Load() > 0 {
			t.Fatalf("before any failure: %+v, %d checks", c, checks.Load())
		}
		for range 2 {
			began := time.Now()
			device.Store(false)
			checks.Store(0)
			log.Lock()
			events = nil
			log.text.Reset()
			log.Unlock()
			for range 100 {
				w.failed(broken)
				time.Sleep(100 * time.Millisecond)
			}
			synctest.Wait()
			c := w.get()
			if c.OK || c.Name != "state" || !c.Since.Equal(began) || !strings.Contains(c.Message, "/state.db: input/output error;") {
				t.Errorf("condition %+v", c)
			}
			log.Lock()
			if lines := strings.Count(log.text.String(), "\n"); lines != 1 || checks.Load() != 5 {
				t.Errorf("%d lines of log and %d checks in 10 s:\n%s", lines, checks.Load(), &log.text)
			}
			log.Unlock()
			device.Store(true)
			time.Sleep(stateCheckInterval)
			synctest.Wait()
			if c := w.get(); !c.OK || c.Message != "" {
				t.Errorf("after it worked again: %+v", c)
			}
			log.Lock()
			if want := []plugin.EventKind{plugin.EventDegraded, plugin.EventRecovered}; !slices.Equal(events, want) {
				t.Errorf("events %v, want %v", events, want)
			}
			log.Unlock()
		}
	})
}

type lockedBuilder struct {
	sync.Mutex

	text strings.Builder
}

func (b *lockedBuilder) Write(p []byte) (int, error) {
	b.Lock()
	defer b.Unlock()
	return b.text.Write(p)
}
