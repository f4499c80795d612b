package broadcast

// batch is the number of values that a pump takes under one acquisition of the feed's lock.
const batch = 64

// A subscriber receives values through ch. While it keeps up, Publish sends to ch directly. When ch is full, a goroutine, the pump, takes
// over: done is set, and only the pump sends until nothing is left.
//
// The feed's lock guards all fields. The pump sends to ch without it.
type subscriber[T any] struct {
	topic *topic[T]
	index int // in topic.subscribers; negative after the subscription has ended
	ch    chan T
	stop  func() bool // stops watching the context

	done chan struct{} // set while the pump runs; closed to stop it
	next *node[T]      // the first value in the topic's list that the pump has not taken; nil if there is none
	lost bool          // unread values were dropped, so a resync value is due
}

// deliver delivers v to the subscribers of t. The caller holds f.mu.
func (f *Feed[T]) deliver(t *topic[T], v T) {
	var n *node[T]
	if t == &f.all && f.History > 0 {
		n = f.add(t, v)
		f.remember(n)
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
		t.newest = nil // every subscriber keeps up, so the list is not needed
	}
}

// start starts the pump of s unless it runs. The caller holds f.mu.
func (f *Feed[T]) start(s *subscriber[T]) {
	if s.done == nil {
		s.done = make(chan struct{})
		go f.pump(s, s.done)
	}
}

// pump sends the unread values of s to its channel until none is left. If done is closed, it stops and closes the channel.
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

// take copies the next values for s into values and returns their number. If there are none, it ends the pump and returns 0.
func (f *Feed[T]) take(s *subscriber[T], values *[batch]T) int {
	f.mu.Lock()
	if s.lost && f.Resync != nil {
		f.mu.Unlock()
		f.Resync(s.topic.name, func(v T) {
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

// release ends the pump of s, which has sent everything. From then on Publish sends to the channel directly, unless the subscription or
// the feed has ended, which closes the channel. The caller holds f.mu.
func (f *Feed[T]) release(s *subscriber[T]) {
	s.done = nil
	switch {
	case s.index < 0:
		close(s.ch)
	case f.closed:
		f.end(s)
	}
}

// A topic is a list of subscribers, and of the values that some of them have still to read.
type topic[T any] struct {
	name        string
	subscribers []*subscriber[T]
	// newest is the end of the linked list. Only the subscribers and the history refer to older nodes, so unneeded ones are collected.
	newest *node[T]
}

// A node is one value in a list. Its number is the sum of the weights in the list up to this value.
type node[T any] struct {
	value  T
	number uint64
	next   *node[T]
}

// add appends a value to the list of a topic. The caller holds f.mu.
func (f *Feed[T]) add(t *topic[T], v T) *node[T] {
	n := &node[T]{value: v}
	if t.newest != nil {
		weight := uint64(1)
		if f.Weight != nil {
			weight = f.Weight(v)
		}
		n.number = t.newest.number + weight
		t.newest.next = n
	}
	t.newest = n
	return n
}

// remember adds a value, the newest of all topics, to the history. The caller holds f.mu.
func (f *Feed[T]) remember(n *node[T]) {
	switch {
	case f.kept == 0:
		f.oldest = n
		f.kept = 1
	case f.kept < min(f.History, minUnread/2):
		f.kept++
	default:
		f.oldest = f.oldest.next
	}
}

// last returns the node with which the last n values of the history begin; nil if there are none. The caller holds f.mu.
func (f *Feed[T]) last(n int) *node[T] {
	if n <= 0 {
		return nil
	}
	from := f.oldest
	for skip := f.kept - n; skip > 0; skip-- {
		from = from.next
	}
	return from
}
