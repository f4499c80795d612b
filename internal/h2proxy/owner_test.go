package h2proxy

import (
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// TestPluginThatReadsNothingCounts: what waits because a plugin does not read counts to its owner, and nothing to root or the host.
func TestPluginThatReadsNothingCounts(t *testing.T) {
	t.Parallel()
	const self, owner = 1, 8
	c := plugin(t, func(p *peer) {
		_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1})
		_ = p.WriteWindowUpdate(0, 1<<30)
		<-t.Context().Done()
	})
	c.config.Owner = owner
	s, budget := call(t, t.Context(), c)
	go func() {
		for s.SendMsg(&Fragment{data: make([]byte, maxFrame)}) == nil { //nolint:revive // until the call ends
		}
	}()
	until(t, "more waits than may without the budget", func() bool { return budget.Bytes() > 0 })
	if n := budget.bytes.Held(self); n != 0 || budget.bytes.Held(owner) == 0 {
		t.Errorf("%d bytes count to the host, and %d to the owner of the plugin", n, budget.bytes.Held(owner))
	}
}

// TestHeadersOfAPluginWithoutRoom: headers in several frames for which its owner has no room cost a plugin that one call, and not the
// others on its connection; the compression goes on.
func TestHeadersOfAPluginWithoutRoom(t *testing.T) {
	t.Parallel()
	const self, owner = 1, 8
	answer := make(chan struct{})
	c := plugin(t, func(p *peer) {
		_ = p.WriteSettings()
		next[*http2.MetaHeadersFrame](p)
		next[*http2.MetaHeadersFrame](p)
		<-answer
		large := []string{":status", "200", "content-type", "application/grpc", "first", "seen here first"}
		for i := range 20 {
			large = append(large, "large", strings.Repeat(string(rune('a'+i)), 2<<10))
		}
		p.headers(1, slices.Clone(p.fields(append(large, "last", "seen here first too")...)), false)
		p.headers(3, p.fields(":status", "200", "content-type", "application/grpc", "first", "seen here first",
			"last", "seen here first too"), false)
		_, _ = io.Copy(io.Discard, p.Conn)
	})
	c.config.Owner = owner
	budget := NewBudget(Limits{UserBytes: MaxMetadata, Bytes: 4 * MaxMetadata}, self, func(uint32, Reason, bool) {})
	open := func() grpc.ClientStream {
		s, err := c.NewStream(t.Context(), nil, "/a.B/C", CallOption{Budget: budget, UID: 7})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first, second := open(), open()
	if !budget.take(owner, 1) { // something else of the owner
		t.Fatal("the budget is full")
	}
	close(answer)
	md, err := second.Header()
	delete(md, "content-type")
	if want := metadata.Pairs("first", "seen here first", "last", "seen here first too"); err != nil || !reflect.DeepEqual(md, want) {
		t.Errorf("the other call has the header %v, and %v", md, err)
	}
	if err := first.RecvMsg(new(Fragment)); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "too much is waiting") {
		t.Errorf("the call ends with %v", err)
	}
}
