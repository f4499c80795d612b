package h2proxy

import (
	"net"
	"runtime"
	"time"
)

// flush wakes the goroutine that writes out; mu is held.
func (c *conn) flush() { signal(c.wake) }

// flushAnswer is flush after a frame that answers a frame of the peer; mu is held.
func (c *conn) flushAnswer() {
	c.answers++
	c.flush()
}

// flushUpdate is flush after a window update; mu is held.
func (c *conn) flushUpdate() {
	if c.updates++; c.updates > maxUpdates {
		_ = c.SetReadDeadline(time.Unix(1, 0)) // in the past, so that read fails and closes the connection
	}
	c.flush()
}

// write writes what is queued until the connection ends.
func (c *conn) write() {
	for {
		select {
		case <-c.wake:
		case <-c.ended:
			return
		}
		runtime.Gosched() // the goroutine that called flush usually has more to write
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

// take removes and returns the queued data, and reports whether the connection must be closed because everything is written.
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

// shallow reduces the limit of queued data from deepOut to baseOut; mu is held.
func (c *conn) shallow() {
	if c.deep {
		c.budget.give(c.uid, deepOut-baseOut)
	}
	c.deep = false
}

// loan is a number of bytes that a budget counts until they are written.
type loan struct {
	account
	bytes int
}

// borrow takes n bytes from a budget until everything that is queued now has been written. It reports whether the budget had room; mu is
// held.
func (c *conn) borrow(budget *Budget, uid uint32, n int) bool {
	if !budget.take(uid, n) {
		return false
	}
	c.lent = append(c.lent, loan{account{budget, uid}, n})
	return true
}

// repay returns loans to their budgets; mu is held.
func (c *conn) repay(loans []loan) {
	for _, l := range loans {
		l.budget.give(l.uid, l.bytes)
	}
}

// hasRoom reports whether a call may queue a frame; mu is held.
func (c *conn) hasRoom() bool {
	queued := c.writing + len(c.out.data)
	return queued < baseOut || c.deep && queued < deepOut
}

// makeRoom is hasRoom, after it has made the connection deep if necessary and possible; mu is held.
func (c *conn) makeRoom() bool {
	if !c.deep && !c.hasRoom() {
		c.deep = c.budget.take(c.uid, deepOut-baseOut)
	}
	return c.hasRoom()
}

// passRoom wakes the stream that has waited longest for room on the connection, if there is room; mu is held. That stream calls passRoom
// again.
func (c *conn) passRoom() {
	if len(c.blocked) > 0 && c.sendWindow > 0 && c.hasRoom() {
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
