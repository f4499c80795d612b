// Package broadcast delivers values to any number of subscribers, in order, without ever blocking the publisher.
//
// A subscriber that keeps up costs one buffered channel and no goroutine. A subscriber that falls behind gets a goroutine, which reads
// from a linked list that all slow subscribers of a topic share. A subscriber that falls too far behind loses its unread values and
// receives one value instead, from which it can restore its state (see Feed.Resync). So memory is bounded, no subscriber delays
// another, and none misses a value unknowingly.
//
// It is for events inside one process. It is not a work queue: values are not acknowledged, and new subscribers receive only the history
// that Feed.History keeps.
package broadcast

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// minUnread is the number of values that a subscriber may leave unread without losing any.
const minUnread = 8192

// buffer is the capacity of a subscriber's channel. When it is full, a goroutine takes over.
const buffer = 16

// A Feed delivers values to its subscribers, in the order in which the calls of Publish took effect. Every value has a topic; a
// subscription to the empty topic receives all values. The zero Feed has no history, and its subscribers may lose values without notice.
// The exported fields must not be changed after the first call of a method. Methods are safe for concurrent use.
type Feed[T any] struct {
	// History is the number of values, of all topics together, that Last and Replay can return again; at most minUnread/2.
	History int

	// Weight returns how many unread values a value counts as, so that large values are bounded too; nil means one each.
	Weight func(T) uint64

	// Resync makes the value that replaces everything a subscriber of topic has missed. It calls commit with that value, exactly
	// once, before it returns. The subscriber receives every value that is published after the call of commit; the committed value has to
	// cover all earlier ones. An owner that publishes under a lock therefore calls commit under the same lock.
	//
	// Resync is called on a goroutine of the feed without locks, when the subscriber has begun to read again.
	Resync func(topic string, commit func(T))

	mu     sync.Mutex
	all    topic[T]             // the empty topic
	topics map[string]*topic[T] // the other topics that have subscribers
	closed bool
	// The history begins at oldest and has kept values.
	oldest *node[T]
	kept   int
}

// Publish delivers v to the subscribers of topic t and to those of all topics. It never waits for a subscriber.
func (f *Feed[T]) Publish(t string, v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.deliver(&f.all, v)
	if topic := f.topics[t]; topic != nil {
		f.deliver(topic, v)
	}
}

// Subscribe returns a channel of the values of topic t that are published from now on. The channel is closed when ctx is done, which may
// lose unread values, and after Close behind the last value.
//
// An owner that publishes under a lock, and subscribes and copies its state under the same lock, misses no value and receives none that
// the copy contains.
func (f *Feed[T]) Subscribe(ctx context.Context, t string) <-chan T {
	return f.subscribe(ctx, t, 0)
}

// Replay is Subscribe for all topics, beginning with the last n values of the history.
func (f *Feed[T]) Replay(ctx context.Context, n int) <-chan T {
	return f.subscribe(ctx, "", n)
}

// Last returns the last n values of the history, oldest first.
func (f *Feed[T]) Last(n int) []T {
	f.mu.Lock()
	defer f.mu.Unlock()
	var values []T
	for node := f.last(n); node != nil; node = node.next {
		values = append(values, node.value)
	}
	return values
}

// Close discards later values and closes the channel of every subscriber behind its last value. It does not wait: the goroutine of a slow
// subscriber runs until everything is read or the subscription's context is done.
func (f *Feed[T]) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, topic := range append(slices.Collect(maps.Values(f.topics)), &f.all) {
		for _, s := range slices.Clone(topic.subscribers) {
			if s.done == nil {
				f.end(s)
			}
		}
	}
}

// subscribe adds a subscriber that first receives the last n values of the history.
func (f *Feed[T]) subscribe(ctx context.Context, name string, n int) <-chan T {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || ctx.Err() != nil {
		ch := make(chan T)
		close(ch)
		return ch
	}
	t := &f.all
	if name != "" {
		if f.topics == nil {
			f.topics = map[string]*topic[T]{}
		}
		if t = f.topics[name]; t == nil {
			t = &topic[T]{name: name}
			f.topics[name] = t
		}
	}
	s := &subscriber[T]{topic: t, ch: make(chan T, buffer), index: len(t.subscribers)}
	t.subscribers = append(t.subscribers, s)
	s.stop = context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if s.index >= 0 {
			f.end(s)
		}
	})
	if s.next = f.last(n); s.next != nil {
		f.start(s)
	}
	return s.ch
}

// remove removes s from its topic, and a topic without subscribers from the feed. The caller holds f.mu.
func (f *Feed[T]) remove(s *subscriber[T]) {
	t := s.topic
	last := len(t.subscribers) - 1
	t.subscribers[s.index] = t.subscribers[last]
	t.subscribers[s.index].index = s.index
	t.subscribers[last] = nil
	t.subscribers = t.subscribers[:last]
	s.index = -1
	if last == 0 {
		delete(f.topics, t.name)
	}
}

// end ends the subscription of s and closes its channel; a running pump closes it instead. The caller holds f.mu.
func (f *Feed[T]) end(s *subscriber[T]) {
	s.stop()
	f.remove(s)
	if s.done != nil {
		close(s.done)
	} else {
		close(s.ch)
	}
}
