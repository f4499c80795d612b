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

// traffic counts the calls in progress to one process of a plugin, on all connections of this host. A plugin of go-plugin aborts its calls
// when it is asked to stop, so the host waits until none is in progress.
type traffic struct {
	mu     sync.Mutex
	calls  int
	ending bool          // no call may begin
	idle   chan struct{} // closed when ending is set and no call is in progress
}

func newTraffic() *traffic { return &traffic{idle: make(chan struct{})} }

// begin counts a call until end is called, which is idempotent. If it returns an error, the call was not sent, and the registry retries it
// on the plugin's next process if there is one.
func (t *traffic) begin(method string) (end func(), err error) {
	// Does not count the library's own streams and health watches, which last as long as the process.
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
		t.closeIdle()
	}), nil
}

// closeIdle closes idle if no call is in progress and none may begin. mu is held.
func (t *traffic) closeIdle() {
	if t.ending && t.calls == 0 {
		close(t.idle)
	}
}

// end refuses new calls, and blocks until no call is in progress, limit has passed, or ctx is done.
func (t *traffic) end(ctx context.Context, limit time.Duration) {
	t.mu.Lock()
	if !t.ending {
		t.ending = true
		t.closeIdle()
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

// options returns the options of a connection whose calls are counted.
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
