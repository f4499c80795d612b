package dirwatch

import "time"

// alarm is a timer that is set to a moment, or to none.
type alarm struct {
	timer *time.Timer
	at    time.Time
}

func newAlarm() *alarm {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &alarm{timer: t}
}

// set has c deliver at the given moment, once, and never if it is zero.
func (a *alarm) set(at time.Time) {
	if at.Equal(a.at) {
		return
	}
	a.at = at
	if at.IsZero() {
		a.timer.Stop()
		return
	}
	a.timer.Reset(time.Until(at))
}

func (a *alarm) c() <-chan time.Time { return a.timer.C }

func (a *alarm) stop() { a.timer.Stop() }
