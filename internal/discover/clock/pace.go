// Package clock is what the pipeline runs on: time, goroutines and chance. There is the machine's, [Real], and that of a simulation, which
// runs everything in one goroutine from one seed. It is no clock for others: what a test of time needs is testing/synctest.
package clock

import (
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/internal/callback"
)

// Pace is safe for concurrent use.
type Pace interface {
	Now() time.Time
	// AfterFunc calls f when d has passed, unless stop is called before.
	AfterFunc(d time.Duration, f func()) (stop func())
	// Sleep blocks until d has passed, or ctx ends, whose error it returns then.
	Sleep(ctx context.Context, d time.Duration) error
	// Yield lets others run.
	Yield()
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
	// Go runs f in a goroutine, and Wait blocks until all of those have ended.
	Go(f func())
	Wait()
	// Call calls a function of others; see [callback.Call].
	Call(do func() error) error
	// Chance is a number from 0 to 1 that is not 1, and ID a word that nobody can guess.
	Chance() float64
	ID() string
}

// Real returns the pace of the machine that this runs on.
func Real() Pace { return &ofMachine{} }

type ofMachine struct{ running sync.WaitGroup }

func (*ofMachine) Now() time.Time { return time.Now() }

func (*ofMachine) AfterFunc(d time.Duration, f func()) (stop func()) {
	timer := time.AfterFunc(d, f)
	return func() { timer.Stop() }
}

func (*ofMachine) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func (*ofMachine) Yield() { runtime.Gosched() }

func (*ofMachine) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

func (r *ofMachine) Go(f func()) { r.running.Go(f) }

func (r *ofMachine) Wait() { r.running.Wait() }

func (*ofMachine) Call(do func() error) error { return callback.Call(do) }

func (*ofMachine) Chance() float64 { return mathrand.Float64() }

// ID has 80 bits of chance.
func (*ofMachine) ID() string { return strings.ToLower(rand.Text()[:16]) }
