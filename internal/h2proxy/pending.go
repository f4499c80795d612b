package h2proxy

import (
	"runtime"
	"slices"
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
	current atomic.Pointer[waiting] // the calls that begin now; nil for first
	first   waiting
	answers atomic.Uint64

	mu     sync.Mutex // guards marked
	marked []*waiting
}

// waiting is how many calls of those that began between two marks have no answer yet.
type waiting struct {
	atomic.Int64

	passed int // how often the plugin has answered a health check since they were marked
}

// PendingCall is one call that is counted. The zero PendingCall is not.
type PendingCall struct {
	calls *Pending
	among *waiting
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
	runtime.AddCleanup(c, func(path string) {
		sockets.Lock()
		defer sockets.Unlock()
		if sockets.calls[path].Value() == nil {
			delete(sockets.calls, path)
		}
	}, path)
	return c
}

// Begin counts a call. The caller ends it once.
func (c *Pending) Begin() PendingCall {
	if c == nil {
		return PendingCall{}
	}
	among := c.begins()
	among.Add(1)
	return PendingCall{c, among}
}

// begins returns what counts the calls that begin now.
func (c *Pending) begins() *waiting {
	if w := c.current.Load(); w != nil {
		return w
	}
	return &c.first
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
	c.among.Add(-1)
}

// Answers returns how many calls have been answered.
func (c *Pending) Answers() uint64 {
	if c == nil {
		return 0
	}
	return c.answers.Load()
}

// Mark marks the calls that have begun until now and wait.
func (c *Pending) Mark() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.marked = slices.DeleteFunc(c.marked, func(w *waiting) bool { return w.Load() == 0 })
	if begun := c.begins(); begun.Load() > 0 {
		c.current.Store(new(waiting))
		c.marked = append(c.marked, begun)
	}
}

// maxPassed is how many health checks a plugin answers while a marked call waits until the mark is removed. After one check, the call may
// only have waited for its turn behind the check.
const maxPassed = 2

// Passed is called when the plugin has answered a health check that was sent after the last Mark. It removes the marks of calls that keep
// the plugin from answering no check, such as streams on which there is nothing to say.
func (c *Pending) Passed() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.marked = slices.DeleteFunc(c.marked, func(w *waiting) bool {
		w.passed++
		return w.passed >= maxPassed
	})
}

// Marked reports whether one of the marked calls has no answer yet.
func (c *Pending) Marked() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.marked, func(w *waiting) bool { return w.Load() > 0 })
}
