package feed

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

// A node is one value in a chain. Number counts the nodes of one chain.
type node[T any] struct {
	value  T
	number uint64
	next   *node[T]
}

// add appends v to the chain.
func (t *topic[T]) add(v T) *node[T] {
	n := &node[T]{value: v}
	if t.newest != nil {
		n.number = t.newest.number + 1
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
