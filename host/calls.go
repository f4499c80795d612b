package host

import (
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// calls are the connections and the running calls of one plugin.
type calls struct {
	mu      sync.Mutex
	ended   bool
	conns   map[*conn]struct{}
	running int
	idle    chan struct{} // made by finish if there are connections, and closed when there are none
}

var (
	errTooManyConns = errors.New("the plugin has too many connections to its host")
	errEnded        = errors.New("the plugin has ended")
)

// connect counts a connection.
func (k *calls) connect(c *conn) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.ended:
		return errEnded
	case len(k.conns) == maxConns:
		return errTooManyConns
	case k.conns == nil:
		k.conns = map[*conn]struct{}{}
	}
	k.conns[c] = struct{}{}
	return nil
}

// disconnect is told that a connection is closed.
func (k *calls) disconnect(c *conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, c)
	if k.idle != nil && len(k.conns) == 0 {
		close(k.idle)
		k.idle = nil
	}
}

// begin counts a call, of which so many may run. Every call that could begin has to end.
func (k *calls) begin(most int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.ended:
		return status.Error(codes.PermissionDenied, errEnded.Error())
	case k.running == most:
		return status.Errorf(codes.ResourceExhausted, "the plugin has %d calls to its host open already", k.running)
	}
	k.running++
	return nil
}

func (k *calls) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running--
}

// finish lets no connection and no call begin any more. The kernel has closed the plugin's ends of the connections when all its
// processes have ended, and what they had sent is still read. A connection that a stranger was handed is closed after patience.
func (k *calls) finish(patience time.Duration) {
	k.mu.Lock()
	k.ended = true
	if len(k.conns) == 0 {
		k.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	k.idle = idle
	k.mu.Unlock()

	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-idle:
		return
	case <-timer.C:
	}
	k.mu.Lock()
	open := make([]*conn, 0, len(k.conns))
	for c := range k.conns {
		open = append(open, c)
	}
	k.mu.Unlock()
	for _, c := range open {
		_ = c.Close() // says nothing that matters any more
	}
}
