package h2proxy

import (
	"net"
	"sync"
)

// Pipe returns the two ends of an in-memory connection between a [Client] and a [Server] of one program. The server counts the data of a
// call for the user, and with the budget, of the client's [CallOption]; its own budget counts only the call itself and the data that is
// queued for the whole connection.
func Pipe() (client, server net.Conn) {
	ours, theirs := net.Pipe()
	by := &callers{of: map[uint32]account{}}
	return &pipeEnd{ours, by}, &pipeEnd{theirs, by}
}

type pipeEnd struct {
	net.Conn
	*callers
}

// account is a user of a budget.
type account struct {
	budget *Budget
	uid    uint32
}

// callers has the accounts of streams that the client's end of a pipe has opened and the server's end has not seen yet. A nil *callers is
// empty.
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

func (c *callers) take(id uint32) (a account, ok bool) {
	if c == nil {
		return account{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok = c.of[id]
	delete(c.of, id)
	return a, ok
}
