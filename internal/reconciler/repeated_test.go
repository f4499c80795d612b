package reconciler_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-dev/patchbay/internal/discover/clock"
	"github.com/patchbay-dev/patchbay/internal/discover/machine"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestDiscardIsRepeated: a registration that was saved and could not be notified is removed from the disk when that works again.
func TestDiscardIsRepeated(t *testing.T) {
	bubble(t, "", reconciler.Config{}, func(t *testing.T, w *world) {
		w.serve("/a", "foo", &fakePlugin{notifyErr: errors.New("busy"), notifyTakes: time.Second})
		w.onDisk(1)
		w.diskFails(errors.New("disk full"))
		time.Sleep(time.Second)
		w.onDisk(1)
		w.remove("/a")
		synctest.Wait()
		w.diskFails(nil)
		time.Sleep(time.Hour)
		w.onDisk(0)
	})
}

// diskFails makes all later writes of the state fail with err, or succeed if err is nil.
func (w *world) diskFails(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failSave = err
}

// TestNewWorkCutsThePause: what could not be saved is tried again immediately when there is more to save of the same name.
func TestNewWorkCutsThePause(t *testing.T) {
	bubble(t, "", reconciler.Config{}, func(t *testing.T, w *world) {
		w.serve("/a", "foo", nil)
		synctest.Wait()
		w.onDisk(1)
		w.diskFails(errors.New("disk full"))
		w.remove("/a")
		time.Sleep(time.Hour) // the pauses have become long
		w.diskFails(nil)
		w.serve("/a", "foo", nil)
		synctest.Wait()
		w.remove("/a")
		synctest.Wait()
		w.onDisk(0)
	})
}

// TestStaleTimerIsIgnored: a timer that was stopped after it had fired, and before that was handled, is not handled any more.
func TestStaleTimerIsIgnored(t *testing.T) {
	bubble(t, "", reconciler.Config{}, func(t *testing.T, w *world) {
		w.stop()
		late := &recordingPace{Pace: clock.Real()}
		w.pace = late
		w.start()
		w.r.SetHandler("T", w.handler)
		p := w.serve("/a", "foo", &fakePlugin{infoErr: errors.New("not yet")})
		synctest.Wait()
		stale := slices.Clone(late.fired)
		w.mu.Lock()
		p.infoErr = nil
		w.mu.Unlock()
		w.r.Reconsider()
		if s := w.status("/a"); s.State != plugin.StateRegistered || len(stale) == 0 {
			t.Fatalf("status %+v, %d timers", s, len(stale))
		}
		var wrong []machine.Input
		w.r.Audit(nil, func(in machine.Input, _ []machine.Effect) {
			if fired, is := in.(machine.Fired); is {
				wrong = append(wrong, fired)
			}
		})
		for _, fire := range stale {
			fire()
		}
		synctest.Wait()
		if len(wrong) > 0 {
			t.Errorf("handled: %+v", wrong)
		}
	})
}

// recordingPace records what its timers call.
type recordingPace struct {
	clock.Pace
	mu    sync.Mutex
	fired []func()
}

// AfterFunc implements [clock.Pace].
func (p *recordingPace) AfterFunc(d time.Duration, f func()) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fired = append(p.fired, f)
	return p.Pace.AfterFunc(d, f)
}

// onDisk checks how many instances are saved.
func (w *world) onDisk(want int) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.saved) != want {
		w.t.Errorf("saved are %+v, want %d", w.saved, want)
	}
}
