// Package broadcast broadcasts values to any number of subscribers, in order, without ever making the publisher wait.
//
// A subscriber that keeps up costs one buffered channel and no goroutine. One that falls behind is served by a goroutine of its
// own from a chain of values that all slow subscribers of a topic share, and one that falls too far behind loses what it has not
// read and gets one value in its place, from which it can build its picture anew (Config.Resync). So memory is bounded, no
// subscriber delays another, and none misses a value without being told.
//
// It is for news inside one process. It is not a queue of work: nothing is acknowledged and nothing is kept for a subscriber that
// has not come yet, except the history that Config.History asks for.
package broadcast

import (
	"context"
	"slices"
	"sync"
)

// minUnread is the number of unread values from which on a subscriber may be resynchronised; below it, none is.
const minUnread = 8192

// buffer is the number of values that a subscriber may leave unread before a goroutine takes over for it.
const buffer = 16

// Config says what a Feed does beside passing values on. The zero Config is a feed without history whose subscribers, if they
// fall too far behind, lose values without a value that says so.
type Config[T any] struct {
	// History is the number of values, whatever their topic, that Last and Replay can give again; at most minUnread/2.
	History int

	// Weight returns how many values a value counts as when unread ones are counted, so that large values are bounded too; nil for one
	// each.
	Weight func(T) uint64

	// Resync makes the value that stands for everything a subscriber of topic has missed, and hands it to commit, exactly once
	// and before returning. What is published before commit is called is covered by that value, what is published afterwards
	// follows it; so an owner that publishes under a lock calls commit under the same lock.
	//
	// It is called on a goroutine of the feed that holds no lock, when the subscriber has begun to read again.
	Resync func(topic string, commit func(T))
}

// A Feed passes values on to its subscribers. Every value has a topic; the empty topic means all of them. All methods may be
// called at once from several goroutines; values are delivered in the order in which the calls of Publish took effect.
type Feed[T any] struct {
	config Config[T]

	mu     sync.Mutex
	topics map[string]*topic[T] // those that have subscribers, and always the empty one
	closed bool
}

// New makes a feed.
func New[T any](config Config[T]) *Feed[T] {
	config.History = min(config.History, minUnread/2)
	if config.Weight == nil {
		config.Weight = func(T) uint64 { return 1 }
	}
	return &Feed[T]{config: config, topics: map[string]*topic[T]{"": {keep: config.History}}}
}

// Publish delivers v to the subscribers of t and to those of all topics. It never waits for one of them.
func (f *Feed[T]) Publish(t string, v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.deliver(f.topics[""], v)
	if t != "" {
		f.deliver(f.topics[t], v)
	}
}

// Subscribe returns a channel of the values of topic t that are published from now on. The channel is closed when ctx ends, and
// values that were not read by then may be lost. After Close it is closed behind the last value.
//
// An owner that publishes under a lock, and under the same lock subscribes and takes a picture of its present state, has the
// picture and the values meet without gap and without repeat.
func (f *Feed[T]) Subscribe(ctx context.Context, t string) <-chan T {
	return f.subscribe(ctx, t, 0)
}

// Replay is Subscribe for all topics, beginning with the last n values as far as the history still holds them.
func (f *Feed[T]) Replay(ctx context.Context, n int) <-chan T {
	return f.subscribe(ctx, "", n)
}

// Last returns the last n values of all topics, oldest first, as far as the history still holds them.
func (f *Feed[T]) Last(n int) []T {
	f.mu.Lock()
	defer f.mu.Unlock()
	var values []T
	for node := f.topics[""].last(n); node != nil; node = node.next {
		values = append(values, node.value)
	}
	return values
}

// Close ends the feed: what is published afterwards goes nowhere, and the channel of every subscriber is closed behind the last value.
// The goroutine of a subscriber that is behind ends when all is read or its context ends.
func (f *Feed[T]) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, topic := range f.topics {
		for _, s := range slices.Clone(topic.subscribers) {
			if s.done == nil {
				f.end(s)
			}
		}
	}
}

// subscribe adds a subscriber that has the last n values of the history to read.
func (f *Feed[T]) subscribe(ctx context.Context, name string, n int) <-chan T {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || ctx.Err() != nil {
		ch := make(chan T)
		close(ch)
		return ch
	}
	t := f.topics[name]
	if t == nil {
		t = &topic[T]{name: name}
		f.topics[name] = t
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
	if s.next = t.last(n); s.next != nil {
		f.start(s)
	}
	return s.ch
}

// remove takes s out of its topic, and the topic out of the feed with its last subscriber. The caller holds f.mu.
func (f *Feed[T]) remove(s *subscriber[T]) {
	t := s.topic
	last := len(t.subscribers) - 1
	t.subscribers[s.index] = t.subscribers[last]
	t.subscribers[s.index].index = s.index
	t.subscribers[last] = nil
	t.subscribers = t.subscribers[:last]
	s.index = -1
	if last == 0 && t.name != "" {
		delete(f.topics, t.name)
	}
}

// end ends the subscription of s and closes its channel, or lets its pump do so. The caller holds f.mu.
func (f *Feed[T]) end(s *subscriber[T]) {
	s.stop()
	f.remove(s)
	if s.done != nil {
		close(s.done)
	} else {
		close(s.ch)
	}
}
