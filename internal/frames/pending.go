package frames

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"weak"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Pending counts the calls of this process to one socket that have no answer yet. It tells a plugin that works on a call from one that
// hangs. Its methods are safe for concurrent use, and a nil Pending counts nothing.
type Pending struct {
	current atomic.Uint32 // index in waiting of the calls that begin now
	waiting [2]atomic.Int64
	answers atomic.Uint64
}

// PendingCall is one call that is counted. The zero PendingCall is not.
type PendingCall struct {
	calls *Pending
	index uint32
}

// sockets has the Pending that are in use, by the path of the socket.
var sockets struct {
	sync.Mutex
	calls map[string]weak.Pointer[Pending]
}

// PendingAt returns the Pending of the socket at path: the same for all who hold it at the same time.
func PendingAt(path string) *Pending {
	path = strings.Clone(path)
	sockets.Lock()
	defer sockets.Unlock()
	if c := sockets.calls[path].Value(); c != nil {
		return c
	}
	if sockets.calls == nil {
		sockets.calls = map[string]weak.Pointer[Pending]{}
	}
	c := new(Pending)
	sockets.calls[path] = weak.Make(c)
	runtime.AddCleanup(c, forgetPending, path)
	return c
}

func forgetPending(path string) {
	sockets.Lock()
	defer sockets.Unlock()
	if sockets.calls[path].Value() == nil {
		delete(sockets.calls, path)
	}
}

// Begin counts a call. The caller ends it once.
func (c *Pending) Begin() PendingCall {
	if c == nil {
		return PendingCall{}
	}
	index := c.current.Load()
	c.waiting[index].Add(1)
	return PendingCall{c, index}
}

// End ends the call, with its first answer or with err. An error that may not be the plugin's is not an answer.
func (c PendingCall) End(err error) {
	if c.calls == nil {
		return
	}
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
	default:
		c.calls.answers.Add(1)
	}
	c.calls.waiting[c.index].Add(-1)
}

// Answers returns how many calls have been answered.
func (c *Pending) Answers() uint64 {
	if c == nil {
		return 0
	}
	return c.answers.Load()
}

// Mark marks the calls that have begun until now; or those of the Mark before, if any of these still waits. Only one goroutine calls it.
func (c *Pending) Mark() {
	if c != nil && !c.Marked() {
		c.current.Store(1 - c.current.Load())
	}
}

// Marked reports whether one of the marked calls has no answer yet.
func (c *Pending) Marked() bool { return c != nil && c.waiting[1-c.current.Load()].Load() > 0 }
