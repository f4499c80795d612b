package dra

import (
	"context"
	"slices"
	"sync"
)

// claimLocks keeps calls for the same claim of a driver apart. The zero value is ready.
type claimLocks struct {
	mu   sync.Mutex
	held map[claimKey]*claimLock
}

type claimKey struct{ driver, uid string }

type claimLock struct {
	free    chan struct{} // has one element while nobody holds the lock
	waiting int           // with the holder
}

// lock waits until nobody else holds one of the claims.
func (l *claimLocks) lock(ctx context.Context, driver string, uids []string) (unlock func(), err error) {
	// In one order, so that nobody waits for each other.
	uids = slices.Sorted(slices.Values(uids))
	for i, uid := range uids {
		if err := l.lockOne(ctx, claimKey{driver, uid}); err != nil {
			l.unlock(driver, uids[:i])
			return nil, err
		}
	}
	return func() { l.unlock(driver, uids) }, nil
}

func (l *claimLocks) lockOne(ctx context.Context, key claimKey) error {
	l.mu.Lock()
	lock := l.held[key]
	if lock == nil {
		lock = &claimLock{free: make(chan struct{}, 1)}
		lock.free <- struct{}{}
		if l.held == nil {
			l.held = map[claimKey]*claimLock{}
		}
		l.held[key] = lock
	}
	lock.waiting++
	l.mu.Unlock()
	select {
	case <-lock.free:
		return nil
	case <-ctx.Done():
		l.leave(key, lock)
		return context.Cause(ctx)
	}
}

func (l *claimLocks) unlock(driver string, uids []string) {
	for _, uid := range uids {
		key := claimKey{driver, uid}
		l.mu.Lock()
		lock := l.held[key]
		l.mu.Unlock()
		lock.free <- struct{}{}
		l.leave(key, lock)
	}
}

func (l *claimLocks) leave(key claimKey, lock *claimLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lock.waiting--; lock.waiting == 0 {
		delete(l.held, key)
	}
}
