package h2proxy

import (
	"net"
	"sync"
)

// Pipe returns the two ends of a connection between a [Client] and a [Server] of one program. What waits at the server for a call counts to
// the caller of the client's [CallOption], by the budget there; the call itself, and what the connection has for all calls, do not.
func Pipe() (client, server net.Conn) {
	ours, theirs := net.Pipe()
	by := &callers{of: map[uint32]account{}}
	return &pipeEnd{ours, by}, &pipeEnd{theirs, by}
}

type pipeEnd struct {
	net.Conn
	*callers
}

// account is to whom something counts.
type account struct {
	budget *Budget
	uid    uint32
}

// callers are those of streams that one end of a pipe has opened and the other has not seen. A nil *callers knows none.
type callers struct {
	mu sync.Mutex
	of map[uint32]account
}

func (c *callers) put(id uint32, a account) {
	if c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.of[id] = a
	}
}

func (c *callers) take(id uint32) (a account, known bool) {
	if c == nil {
		return account{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a, known = c.of[id]
	delete(c.of, id)
	return a, known
}
