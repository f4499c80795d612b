package dra

import (
	"context"
	"sync"
	"sync/atomic"
)

// claimLocks keeps calls for the same claim of a driver apart. The zero value is ready.
type claimLocks struct {
	mu   sync.Mutex
	held map[claimKey]chan struct{} // closed when whoever holds the claim lets go of it
}

type claimKey struct{ driver, uid string }

// lockedClaims are claims that are locked until all who hold them have released them.
type lockedClaims struct {
	holders atomic.Int32
	unlock  func()
}

// hold adds a holder. The caller is one.
func (c *lockedClaims) hold() { c.holders.Add(1) }

func (c *lockedClaims) release() {
	if c.holders.Add(-1) == 0 {
		c.unlock()
	}
}

// lock waits until nobody else holds one of the claims. It takes all or none, so that two callers never wait for each other. The caller
// holds them.
func (l *claimLocks) lock(ctx context.Context, driver string, uids []string) (*lockedClaims, error) {
	for {
		busy := l.tryLock(driver, uids)
		if busy == nil {
			locked := &lockedClaims{unlock: func() { l.unlock(driver, uids) }}
			locked.hold()
			return locked, nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// tryLock takes the claims, or returns what to wait for.
func (l *claimLocks) tryLock(driver string, uids []string) (busy <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, uid := range uids {
		if busy := l.held[claimKey{driver, uid}]; busy != nil {
			return busy
		}
	}
	if l.held == nil {
		l.held = map[claimKey]chan struct{}{}
	}
	free := make(chan struct{})
	for _, uid := range uids {
		l.held[claimKey{driver, uid}] = free
	}
	return nil
}

func (l *claimLocks) unlock(driver string, uids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.held[claimKey{driver, uids[0]}])
	for _, uid := range uids {
		delete(l.held, claimKey{driver, uid})
	}
}
