package h2proxy

import (
	"net"
	"runtime"
	"time"
)

// flush has what is in out written; mu is held.
func (c *conn) flush() { signal(c.wake) }

// flushAnswer has a frame written that the peer has caused; mu is held.
func (c *conn) flushAnswer() {
	c.answers++
	c.flush()
}

// flushUpdate has an update of a window written; mu is held.
func (c *conn) flushUpdate() {
	if c.updates++; c.updates > maxUpdates {
		_ = c.SetReadDeadline(time.Unix(1, 0)) // long ago: the one who reads ends the connection
	}
	c.flush()
}

func (c *conn) write() {
	for {
		select {
		case <-c.wake:
		case <-c.ended:
			return
		}
		runtime.Gosched() // who woke this one has mostly more to write
		for {
			data, last := c.take()
			if last {
				c.fail(net.ErrClosed)
				return
			}
			if len(data) == 0 {
				break
			}
			if _, err := c.Write(data); err != nil {
				c.fail(err)
				return
			}
			giveBuffer(data)
		}
	}
}

// take returns what is to be written next, and whether the connection is to end.
func (c *conn) take() (data []byte, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	data, c.out.data = c.out.data, nil
	c.answers, c.updates = 0, 0
	signal(c.taken)
	c.repay(c.lentWriting)
	c.lent, c.lentWriting = nil, c.lent
	if c.writing = len(data); c.writing == 0 {
		c.shallow()
	}
	c.passRoom()
	return data, c.closing && len(data) == 0
}

// shallow gives back what makes the connection deep; mu is held.
func (c *conn) shallow() {
	if c.deep {
		c.budget.give(c.uid, deepOut-baseOut)
	}
	c.deep = false
}

// loan is what a budget has lent for something of a user that waits to be written.
type loan struct {
	account
	bytes int
}

// borrow has a budget count n bytes to a user until what is in out then is written, and says whether it does; mu is held.
func (c *conn) borrow(budget *Budget, uid uint32, n int) bool {
	if !budget.take(uid, n) {
		return false
	}
	c.lent = append(c.lent, loan{account{budget, uid}, n})
	return true
}

// repay gives back what was lent; mu is held.
func (c *conn) repay(loans []loan) {
	for _, l := range loans {
		l.budget.give(l.uid, l.bytes)
	}
}

// room says whether a call may add a frame to out; mu is held.
func (c *conn) room() bool {
	waiting := c.writing + len(c.out.data)
	if waiting >= baseOut && !c.deep {
		c.deep = c.budget.take(c.uid, deepOut-baseOut)
	}
	return waiting < baseOut || c.deep && waiting < deepOut
}

// passRoom wakes the stream that has waited longest for room on the connection, if there is some; mu is held. That one passes on what is
// left.
func (c *conn) passRoom() {
	if len(c.blocked) == 0 || c.sendWindow <= 0 {
		return
	}
	if waiting := c.writing + len(c.out.data); waiting < baseOut || c.deep && waiting < deepOut {
		s := c.blocked[0]
		c.blocked = c.blocked[1:]
		s.queued = false
		signal(s.writable)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
