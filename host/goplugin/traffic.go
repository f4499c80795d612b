package goplugin

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// traffic counts the calls that are under way to one process of a plugin, on all connections that this host has to it. A plugin of
// go-plugin cuts what it does when it is told to end, so it is told when nothing is under way any more.
type traffic struct {
	mu     sync.Mutex
	calls  int
	ending bool          // no call may begin
	idle   chan struct{} // closed when ending and none is under way
}

func newTraffic() *traffic { return &traffic{idle: make(chan struct{})} }

// begin counts a call until end is called, which may be more than once. A call that may not begin was not sent, and the registry makes it
// at the plugin's next process if there is one.
func (t *traffic) begin(method string) (end func(), err error) {
	// What the library itself calls, and who watches the health, would be under way for as long as the process lives.
	if strings.HasPrefix(method, "/plugin.") || strings.HasPrefix(method, "/grpc.health.v1.Health/") {
		return func() {}, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ending {
		return nil, status.Error(codes.Unavailable, "this process of the plugin is being ended; call again when the plugin is registered again")
	}
	t.calls++
	return sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.calls--
		t.note()
	}), nil
}

// note closes idle when it is time. mu is held.
func (t *traffic) note() {
	if t.ending && t.calls == 0 {
		close(t.idle)
	}
}

// end lets no call begin any more, and blocks until the last one has ended, until limit has passed or until ctx ends.
func (t *traffic) end(ctx context.Context, limit time.Duration) {
	t.mu.Lock()
	if !t.ending {
		t.ending = true
		t.note()
	}
	t.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-t.idle:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// options are those of a connection whose calls are counted.
func (t *traffic) options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(t.unary), grpc.WithChainStreamInterceptor(t.stream)}
}

func (t *traffic) unary(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	end, err := t.begin(method)
	if err != nil {
		return err
	}
	defer end()
	return invoke(ctx, method, request, reply, conn, opts...)
}

func (t *traffic) stream(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	end, err := t.begin(method)
	if err != nil {
		return nil, err
	}
	stream, err := open(ctx, desc, conn, method, append(opts[:len(opts):len(opts)], grpc.OnFinish(func(error) { end() }))...)
	if err != nil {
		end()
	}
	return stream, err
}
