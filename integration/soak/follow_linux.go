package main

import (
	"context"
	"errors"
	"sync"
	"time"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/client"
)

// follower is a subscriber that reads all events of one life of the daemon.
type follower struct {
	began time.Time // before the life

	mu         sync.Mutex
	last       uint64
	lastAt     time.Time
	registered map[string]bool // nil if it has not seen all events
}

// follow starts a follower, which ends with the life.
func (s *soak) follow(life int, began time.Time) *follower {
	f := &follower{began: began, registered: map[string]bool{}}
	go func() {
		for e, err := range s.daemon.Client.Events(context.Background(), &patchbayv1.WatchEventsRequest{Follow: true}) {
			switch {
			case errors.Is(err, client.ErrBehind):
				s.violation("a subscriber of life %d that reads all the time was told that it fell behind", life)
				return
			case err != nil:
				return // the end of the life
			}
			f.take(s, e)
		}
	}()
	return f
}

func (f *follower) take(s *soak, e *patchbayv1.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.count(invariants, "an event follows the one before")
	switch {
	case f.last == 0 && e.Seq != 1 && !e.Time.AsTime().Before(f.began):
		f.registered = nil // the first ones of the life are not kept any more
	case f.last != 0 && e.Seq != f.last+1 && !f.lastAt.Before(f.began):
		// Of earlier lives there is what could be written: a full disk and a kill leave gaps.
		s.violation("event %d follows event %d", e.Seq, f.last)
	}
	f.last, f.lastAt = e.Seq, e.Time.AsTime()
	if f.registered == nil || e.Time.AsTime().Before(f.began) {
		return
	}
	key := e.Type + "/" + e.Name + " " + e.Instance
	switch e.Kind {
	case "registered", "restored": // one that was superseded before the life began stays so without another word
		f.registered[key] = true
	case "deregistered":
		delete(f.registered, key)
	}
}

// state returns the last event, and all that are registered, if that is known.
func (f *follower) state() (last uint64, registered []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.registered == nil {
		return f.last, nil
	}
	return f.last, append([]string{}, sorted(f.registered)...)
}

// stuck is a subscriber that reads one event every few seconds. It must be told if it misses any, and must be no trouble to others.
func (s *soak) stuck(ctx context.Context) {
	for ctx.Err() == nil {
		var last uint64
		began, lastAt := time.Now(), time.Time{}
		for e, err := range s.daemon.Client.Events(ctx, &patchbayv1.WatchEventsRequest{Follow: true}) {
			if errors.Is(err, client.ErrBehind) {
				s.count(operations, "the stuck subscriber was told that it fell behind")
			}
			if err != nil {
				break
			}
			s.count(invariants, "an event follows the one before, for the stuck subscriber")
			if last != 0 && e.Seq != last+1 && !lastAt.Before(began) { // what is older may have gaps, as above
				s.violation("the stuck subscriber got event %d after event %d", e.Seq, last)
			}
			// It wakes now and then, to read a few hundred.
			lastAt = e.Time.AsTime()
			if last = e.Seq; last%300 == 0 {
				wait(ctx, 20*time.Second)
			}
		}
		wait(ctx, 100*time.Millisecond) // the daemon may be away
	}
}
