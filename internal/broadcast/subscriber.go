package broadcast

// batch is the number of values that a pump takes out of the chain at a time, so that it rarely meets the publisher at the lock.
const batch = 64

// A subscriber receives through ch, in one of two ways. As long as it keeps up, Publish sends to ch itself. Once ch is full it is
// behind: done is set and its pump alone sends, until there is nothing left to send.
//
// Everything is guarded by the feed's lock, except that the pump sends without it.
type subscriber[T any] struct {
	topic *topic[T]
	index int // in topic.subscribers; negative when the subscription has ended
	ch    chan T
	stop  func() bool // stops waiting for the end of the context

	done chan struct{} // set while the pump runs; closed to end it
	next *node[T]      // the first value of the topic's chain that the pump has not taken yet, if there is one
	lost bool          // what next was has been dropped: a resync value is due
}

// deliver passes v on to the subscribers of t. The caller holds f.mu.
func (f *Feed[T]) deliver(t *topic[T], v T) {
	if t == nil {
		return
	}
	var n *node[T]
	if t.keep > 0 {
		n = f.add(t, v)
	}
	for _, s := range t.subscribers {
		if s.done == nil {
			select {
			case s.ch <- v:
				continue
			default:
			}
		}
		if s.lost {
			continue
		}
		if n == nil {
			n = f.add(t, v)
		}
		switch {
		case s.next == nil:
			s.next = n
		case n.number-s.next.number >= minUnread:
			s.next, s.lost = nil, true
		}
		f.start(s)
	}
	if n == nil {
		t.newest = nil // nobody is behind: the chain is not needed
	}
}

// start starts the pump of s if it does not run. The caller holds f.mu.
func (f *Feed[T]) start(s *subscriber[T]) {
	if s.done == nil {
		s.done = make(chan struct{})
		go f.pump(s, s.done)
	}
}

// pump sends what s has not read yet. It ends when nothing is left, and when done is closed; then it closes the channel.
func (f *Feed[T]) pump(s *subscriber[T], done <-chan struct{}) {
	var values [batch]T
	for {
		n := f.take(s, &values)
		if n == 0 {
			return
		}
		for _, v := range values[:n] {
			select {
			case s.ch <- v:
			case <-done:
				close(s.ch)
				return
			}
		}
		clear(values[:n])
	}
}

// take moves the next values for s from the chain to values and returns their number. If there are none it returns 0 and Publish
// sends to s.ch itself again.
func (f *Feed[T]) take(s *subscriber[T], values *[batch]T) int {
	f.mu.Lock()
	if s.lost && f.config.Resync != nil {
		f.mu.Unlock()
		f.config.Resync(s.topic.name, func(v T) {
			f.mu.Lock()
			defer f.mu.Unlock()
			s.lost = false
			values[0] = v
		})
		return 1
	}
	defer f.mu.Unlock()
	s.lost = false
	n := 0
	for ; s.next != nil && n < batch; n++ {
		values[n] = s.next.value
		s.next = s.next.next
	}
	if n == 0 {
		f.release(s)
	}
	return n
}

// release ends the pump of s, which has sent everything: Publish sends to the channel again, or it is closed with the subscription or
// the feed. The caller holds f.mu.
func (f *Feed[T]) release(s *subscriber[T]) {
	ended := s.index < 0
	s.done = nil
	switch {
	case ended:
		close(s.ch)
	case f.closed:
		f.end(s)
	}
}

// A topic is the subscribers of one topic and the chain of the values that some of them have still to read.
type topic[T any] struct {
	name        string
	keep        int // number of values to keep for Last and Replay
	subscribers []*subscriber[T]

	// The chain ends at newest. Nothing but the subscribers and the history holds its older nodes, so those that nobody needs
	// are collected.
	newest  *node[T]
	oldest  *node[T] // the first one of the history
	history int      // number of nodes from oldest to newest
}

// A node is one value in a chain. Number is the weight of the nodes of one chain up to this one.
type node[T any] struct {
	value  T
	number uint64
	next   *node[T]
}

func (f *Feed[T]) add(t *topic[T], v T) *node[T] {
	n := &node[T]{value: v}
	if t.newest != nil {
		n.number = t.newest.number + f.config.Weight(v)
		t.newest.next = n
	}
	t.newest = n
	if t.keep == 0 {
		return n
	}
	if t.history == 0 {
		t.oldest = n
	}
	if t.history < t.keep {
		t.history++
	} else {
		t.oldest = t.oldest.next
	}
	return n
}

// last returns the node from which on there are n values in the history, or nil if there are none.
func (t *topic[T]) last(n int) *node[T] {
	if n <= 0 {
		return nil
	}
	from := t.oldest
	for skip := t.history - n; skip > 0; skip-- {
		from = from.next
	}
	return from
}
