// Package clock provides time, goroutines and random values to the pipeline. [Real] is the implementation for programs. A simulation has
// its own, which runs everything in one goroutine from one seed. Other tests should use testing/synctest.
package clock

import (
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Pace is a source of time, goroutines and random values. It is safe for concurrent use.
type Pace interface {
	Now() time.Time
	// AfterFunc calls f after d, unless stop is called before.
	AfterFunc(d time.Duration, f func()) (stop func())
	// Sleep blocks until d has passed, or ctx ends, whose error it returns then.
	Sleep(ctx context.Context, d time.Duration) error
	// Yield lets other goroutines run.
	Yield()
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
	// Go runs f in a goroutine, and Wait blocks until all of those have ended.
	Go(f func())
	Wait()
	// Chance returns a random number in [0, 1), and ID an identifier that cannot be guessed.
	Chance() float64
	ID() string
}

// Real returns a Pace with the system's time and goroutines.
func Real() Pace { return &realPace{} }

type realPace struct{ running sync.WaitGroup }

func (*realPace) Now() time.Time { return time.Now() }

func (*realPace) AfterFunc(d time.Duration, f func()) (stop func()) {
	timer := time.AfterFunc(d, f)
	return func() { timer.Stop() }
}

func (*realPace) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

func (*realPace) Yield() { runtime.Gosched() }

func (*realPace) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

func (r *realPace) Go(f func()) { r.running.Go(f) }

func (r *realPace) Wait() { r.running.Wait() }

func (*realPace) Chance() float64 { return mathrand.Float64() }

// ID has 80 random bits.
func (*realPace) ID() string { return strings.ToLower(rand.Text()[:16]) }
