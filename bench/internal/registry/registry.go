package registry

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/patchbay-dev/patchbay/bench/internal/proc"
)

// Registry does work with a [Subject] and says how long it took. Its methods are those of net/rpc.
type Registry struct {
	subject Subject
	opened  time.Duration
}

// Opened says how many nanoseconds it took to open the subject, with what its directory had.
func (r *Registry) Opened(_ proc.None, took *int64) error {
	*took = r.opened.Nanoseconds()
	return nil
}

// List says how many nanoseconds it takes to list all plugins, of which there have to be n.
func (r *Registry) List(n int, took *int64) error {
	start := time.Now()
	got := r.subject.List()
	*took = time.Since(start).Nanoseconds()
	if got != n {
		return fmt.Errorf("%d plugins are listed, want %d", got, n)
	}
	return nil
}

// Burst is the registration of plugins First, First+1, …, by a number of callers at once.
type Burst struct{ First, Count, Callers int }

// Fill registers plugins that stay.
func (r *Registry) Fill(burst Burst, _ *proc.None) error { return spread(burst, r.subject.Register) }

// Register registers plugins and says how many nanoseconds it took, for all of them. Then it takes them out.
func (r *Registry) Register(burst Burst, took *int64) error {
	start := time.Now()
	err := spread(burst, r.subject.Register)
	*took = time.Since(start).Nanoseconds()
	if err != nil {
		return err
	}
	return spread(burst, r.subject.Deregister)
}

// spread calls do for each plugin of a burst.
func spread(burst Burst, do func(i int) error) error {
	var next atomic.Int64
	var once sync.Once
	var failed error
	var callers sync.WaitGroup
	for range burst.Callers {
		callers.Go(func() {
			for i := next.Add(1) - 1; i < int64(burst.Count); i = next.Add(1) - 1 {
				if err := do(burst.First + int(i)); err != nil {
					once.Do(func() { failed = err })
					return
				}
			}
		})
	}
	callers.Wait()
	return failed
}

// Loop is a number of calls, by as many goroutines as there are cores to use.
type Loop struct{ Plugin, Cores, Calls int }

// Cost is what one call cost.
type Cost struct{ Nanoseconds, Allocations float64 }

// Dispense dispenses one plugin again and again. With two cores a call costs half if neither waits for the other.
func (r *Registry) Dispense(loop Loop, cost *Cost) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(loop.Cores))
	name := Name(loop.Plugin)
	errs := make([]error, loop.Cores)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	var cores sync.WaitGroup
	for core := range loop.Cores {
		cores.Go(func() {
			for range loop.Calls / loop.Cores {
				if err := r.subject.Dispense(name); err != nil {
					errs[core] = err
					return
				}
			}
		})
	}
	cores.Wait()
	cost.Nanoseconds = float64(time.Since(start).Nanoseconds()) / float64(loop.Calls)
	runtime.ReadMemStats(&after)
	// The goroutines themselves are a few allocations, which many calls make nothing of.
	cost.Allocations = float64((after.Mallocs-before.Mallocs)*1000/uint64(loop.Calls)) / 1000
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Waiter waits for a plugin that is registered after it has waited for a while.
type Waiter struct {
	Plugin int
	Waits  time.Duration
}

// Wait says how many nanoseconds passed from the call that registered a plugin to the return of a call that waited for it.
func (r *Registry) Wait(waiter Waiter, took *int64) error {
	began, waited := make(chan struct{}), make(chan error, 1)
	var returned time.Time
	go func() {
		close(began)
		err := r.subject.Wait(context.Background(), waiter.Plugin)
		returned = time.Now()
		waited <- err
	}()
	<-began
	<-time.After(waiter.Waits) //nolint:forbidigo // how long the waiter waits is part of the measurement
	start := time.Now()
	if err := r.subject.Register(waiter.Plugin); err != nil {
		return err
	}
	if err := <-waited; err != nil {
		return err
	}
	*took = returned.Sub(start).Nanoseconds()
	return r.subject.Deregister(waiter.Plugin)
}

// Fan is a number of changes that Subscribers learn of, while Stuck further ones do not read.
type Fan struct {
	Subscribers, Stuck, Changes int
	Patience                    time.Duration // for each change
}

// Fanned is the nanoseconds of each change. There are fewer than were asked for if one took longer than the patience: then the subject is
// stuck, and the process good for nothing any more.
type Fanned []int64

// Events says how long changes took, from the call that makes one until all subscribers that read have received it.
func (r *Registry) Events(fan Fan, fanned *Fanned) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var missing atomic.Int64
	all := make(chan struct{}, 1)
	for range fan.Subscribers {
		r.subject.Subscribe(ctx, func() {
			if missing.Add(-1) == 0 {
				all <- struct{}{}
			}
		})
	}
	for range fan.Stuck {
		r.subject.Subscribe(ctx, nil)
	}
	for change := range fan.Changes {
		missing.Store(int64(fan.Subscribers))
		changed := make(chan error, 1)
		start := time.Now()
		go func() { changed <- r.toggle(change) }()
		timeout := time.NewTimer(fan.Patience)
		select {
		case <-all:
		case <-timeout.C:
			return nil
		}
		*fanned = append(*fanned, time.Since(start).Nanoseconds())
		select {
		case err := <-changed:
			if err != nil {
				return err
			}
		case <-timeout.C:
			return nil
		}
		timeout.Stop()
	}
	return nil
}

// toggle makes a change: it registers a plugin or takes it out.
func (r *Registry) toggle(change int) error {
	if change%2 == 0 {
		return r.subject.Register(0)
	}
	return r.subject.Deregister(0)
}
