package host

import (
	"context"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// Promise is the result of an admission check, maybe in the future. It implements [plugin.Promise].
type Promise struct {
	pin plugin.Pin

	mu       sync.Mutex // guards what follows
	resolved bool
	err      error
	waiters  chan struct{} // made by the first who has to wait

	// What follows belongs to the admission plugin, under its lock.
	id         uint64 // on the stream, if it was sent
	deadline   time.Time
	prev, next *Promise // in the list that it is in
}

// Wait blocks until the check is done and returns nil if the package is admitted, else why not. When ctx ends first it returns
// the error of ctx. The errors of checks that have no answer wrap [ErrAborted], [ErrCrashed], [ErrTimeout], [ErrProtocol] or
// [ErrQueueFull]; a refusal by the plugin has the gRPC status that the plugin gave.
func (p *Promise) Wait(ctx context.Context) error {
	p.mu.Lock()
	if p.resolved {
		p.mu.Unlock()
		return p.err
	}
	if p.waiters == nil {
		p.waiters = make(chan struct{})
	}
	waiters := p.waiters
	p.mu.Unlock()
	select {
	case <-waiters:
		return p.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// resolve sets the result, once.
func (p *Promise) resolve(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resolved, p.err = true, err
	if p.waiters != nil {
		close(p.waiters)
		p.waiters = nil
	}
}

// promises is a list of promises, oldest first. A promise is in one list at most. The zero value is empty.
type promises struct {
	first, last *Promise
	n           int
}

// push puts a promise to the end.
func (l *promises) push(p *Promise) {
	p.prev, p.next = l.last, nil
	if l.last == nil {
		l.first = p
	} else {
		l.last.next = p
	}
	l.last = p
	l.n++
}

// remove takes out a promise that is in the list.
func (l *promises) remove(p *Promise) {
	if p.prev == nil {
		l.first = p.next
	} else {
		p.prev.next = p.next
	}
	if p.next == nil {
		l.last = p.prev
	} else {
		p.next.prev = p.prev
	}
	p.prev, p.next = nil, nil
	l.n--
}

// moveFirst puts the first promise to the end of another list, and returns it.
func (l *promises) moveFirst(to *promises) *Promise {
	p := l.first
	l.remove(p)
	to.push(p)
	return p
}
