// Package pendingcalls counts the calls to a socket that have no answer yet, to distinguish a plugin that works on a call from one that
// hangs. It does not cancel calls, and does not decide what follows from a hang: package supervise does.
package pendingcalls

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

// Counter counts the calls of this process to one socket. Its methods are safe for concurrent use. A nil Counter counts nothing.
type Counter struct {
	current atomic.Pointer[group] // of the calls that begin now; nil for first
	first   group
	answers atomic.Uint64

	mu     sync.Mutex // guards marked
	marked []*group
}

// group is the number of calls without an answer among those that began between two marks.
type group struct {
	atomic.Int64

	passed int // how many health checks the plugin has answered since the group was marked
}

// Call is one call that is counted. The zero Call is not counted.
type Call struct {
	counter *Counter
	group   *group
}

// counters has the Counters that are in use, by the path of the socket.
var counters struct {
	sync.Mutex
	at map[string]weak.Pointer[Counter]
}

// At returns the Counter of the socket at path. Everyone who holds it at the same time shares it.
func At(path string) *Counter {
	path = strings.Clone(path)
	counters.Lock()
	defer counters.Unlock()
	if c := counters.at[path].Value(); c != nil {
		return c
	}
	if counters.at == nil {
		counters.at = map[string]weak.Pointer[Counter]{}
	}
	c := new(Counter)
	counters.at[path] = weak.Make(c)
	runtime.AddCleanup(c, func(path string) {
		counters.Lock()
		defer counters.Unlock()
		if counters.at[path].Value() == nil {
			delete(counters.at, path)
		}
	}, path)
	return c
}

// Begin counts a call. The caller must call End once.
func (c *Counter) Begin() Call {
	if c == nil {
		return Call{}
	}
	g := c.currentGroup()
	g.Add(1)
	return Call{c, g}
}

func (c *Counter) currentGroup() *group {
	if g := c.current.Load(); g != nil {
		return g
	}
	return &c.first
}

// End ends the call with its first answer, or with err. Codes that gRPC itself may cause do not count as an answer of the plugin.
func (c Call) End(err error) {
	if c.counter == nil {
		return
	}
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
	default:
		c.counter.answers.Add(1)
	}
	c.group.Add(-1)
}

// Answers returns the number of calls that have been answered.
func (c *Counter) Answers() uint64 {
	if c == nil {
		return 0
	}
	return c.answers.Load()
}

// Mark marks all calls that have begun and have no answer.
func (c *Counter) Mark() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.marked = slices.DeleteFunc(c.marked, func(g *group) bool { return g.Load() == 0 })
	if begun := c.currentGroup(); begun.Load() > 0 {
		c.current.Store(new(group))
		c.marked = append(c.marked, begun)
	}
}

// maxPassed is the number of health checks after which the mark of a waiting call is removed. One is not enough: the plugin may have
// handled the check before the call.
const maxPassed = 2

// Passed is called when the plugin has answered a health check that was sent after the last Mark. It removes the marks of calls that do
// not keep the plugin from answering checks, such as idle streams.
func (c *Counter) Passed() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.marked = slices.DeleteFunc(c.marked, func(g *group) bool {
		g.passed++
		return g.passed >= maxPassed
	})
}

// Marked reports whether a marked call has no answer yet.
func (c *Counter) Marked() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.marked, func(g *group) bool { return g.Load() > 0 })
}
