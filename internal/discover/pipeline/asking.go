package pipeline

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"
)

// asking bounds how many plugins are asked at once what they are, of each user and of all but root and the host's user: each takes a
// descriptor until it is registered, and then counts as a plugin, or until it has been told why it is not. Others of the user wait.
type asking struct {
	perUser, total int // zero for any number

	mu     sync.Mutex
	byUser map[uint32]chan struct{} // as many users as are trusted
	all    chan struct{}
}

// newAsking takes the bounds of how many plugins there may be: as many may be asked.
func newAsking(perUser, total int) *asking {
	if total <= 0 || total == math.MaxInt {
		return &asking{}
	}
	if perUser <= 0 || perUser > total {
		perUser = total
	}
	return &asking{perUser: perUser, total: total, byUser: map[uint32]chan struct{}{}, all: make(chan struct{}, total)}
}

// begin waits until one more plugin of a user may be asked, for his own and for all for as long as timeout each. End is called when it
// is registered or refused.
func (a *asking) begin(ctx context.Context, timeout time.Duration, uid uint32) (end func(), err error) {
	if a.total == 0 {
		return func() {}, nil
	}
	a.mu.Lock()
	own := a.byUser[uid]
	if own == nil {
		own = make(chan struct{}, a.perUser)
		a.byUser[uid] = own
	}
	a.mu.Unlock()
	if err := take(ctx, timeout, own); err != nil {
		return nil, a.unasked(uid, err)
	}
	if err := take(ctx, timeout, a.all); err != nil {
		<-own
		return nil, a.unasked(uid, err)
	}
	return sync.OnceFunc(func() {
		<-a.all
		<-own
	}), nil
}

func (a *asking) unasked(uid uint32, err error) error {
	return fmt.Errorf("it was not asked who it is, because %d plugins of user %d, or %d in total, are neither registered nor refused yet: %w",
		a.perUser, uid, a.total, err)
}

// take takes one of slots, as soon as one is free.
func take(ctx context.Context, timeout time.Duration, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
