package dynamicplugins

import (
	"runtime"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
)

// TestLinkInUse: while a call is under way nobody closes its connection, however often the link is retired and revived meanwhile; and when the
// last call has ended on a link that is retired, nothing is open.
func TestLinkInUse(t *testing.T) {
	p := newPool()
	defer p.shutdown()
	l := newInstance(p, &PluginInfo{ConnectionInfo: &PluginConnectionInfo{SocketPath: "/nowhere"}}).link
	if c, err := l.begin(false); c != nil || err != nil {
		t.Fatalf("a call began on a link that was never in use: %v, %v", c, err)
	}
	l.revive()
	if c, err := l.begin(false); c == nil || err != nil {
		t.Fatalf("no call begins on a link in use: %v, %v", c, err)
	}
	l.retire()
	if l.messages.Load() == nil {
		t.Error("a link that is retired closes the connection of a call")
	}
	if l.end(); l.messages.Load() != nil {
		t.Error("the last call on a link that is retired does not close its connection")
	}
	const callers, rounds = 8, 5000
	var running sync.WaitGroup
	for range callers {
		running.Go(func() {
			for range rounds {
				c, err := l.begin(false)
				if err != nil {
					t.Error(err)
				}
				if c == nil {
					continue
				}
				runtime.Gosched()
				if c.(*grpc.ClientConn).GetState() == connectivity.Shutdown {
					t.Error("the connection of a call is closed")
				}
				l.end()
			}
		})
	}
	running.Go(func() {
		for range rounds {
			l.revive()
			l.retire()
		}
	})
	running.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.open) > 0 || l.messages.Load() != nil {
		t.Errorf("%d connections are open, and the link has %v", len(p.open), l.messages.Load())
	}
}
