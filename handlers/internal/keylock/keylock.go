// Package keylock locks keys: calls for the same key run one after another, and others do not wait. A caller may give up waiting. It is not
// fair: the order in which waiting callers proceed is not defined.
package keylock

import (
	"context"
	"sync"
)

// Locks are the locks of all keys. The zero value is ready to use. The methods are safe for concurrent use.
type Locks[Key comparable] struct {
	mu   sync.Mutex
	held map[Key]chan struct{} // closed when the key is unlocked
}

// Lock waits until none of the keys, which all differ, is locked, and locks them. It never keeps a part of them while it waits, so callers
// cannot deadlock. The caller calls unlock. The error is the cause of the end of ctx.
func (l *Locks[Key]) Lock(ctx context.Context, keys ...Key) (unlock func(), err error) {
	unlocked := make(chan struct{})
	for {
		busy := l.tryLock(keys, unlocked)
		if busy == nil {
			return func() { l.unlock(keys, unlocked) }, nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// tryLock locks the keys, or returns a channel that is closed when one of them is unlocked.
func (l *Locks[Key]) tryLock(keys []Key, unlocked chan struct{}) (busy <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range keys {
		if busy := l.held[key]; busy != nil {
			return busy
		}
	}
	if l.held == nil {
		l.held = map[Key]chan struct{}{}
	}
	for _, key := range keys {
		l.held[key] = unlocked
	}
	return nil
}

func (l *Locks[Key]) unlock(keys []Key, unlocked chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(unlocked)
	for _, key := range keys {
		delete(l.held, key)
	}
}
