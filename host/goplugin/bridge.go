package goplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/internal/launch/output"
	"github.com/patchbay-dev/patchbay/proxy"
)

// bridge takes connections for a plugin that serves one multiplexed connection only, which the library has, and forwards the calls to that.
type bridge struct {
	conns   chan net.Conn
	done    chan struct{}
	once    sync.Once
	server  *proxy.Server
	serving sync.WaitGroup
}

func newBridge(conn grpc.ClientConnInterface) *bridge {
	b := &bridge{conns: make(chan net.Conn), done: make(chan struct{})}
	to := proxy.Director(func(context.Context, string) (grpc.ClientConnInterface, error) { return conn, nil })
	b.server = proxy.NewServer(context.Background(), to.Forward)
	b.serving.Go(func() { _ = b.server.Serve(b) }) // ends with close, and with nothing else
	return b
}

// dial connects to the bridge.
func (b *bridge) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case b.conns <- theirs:
		return ours, nil
	case <-b.done:
		return nil, errors.Join(errors.New("the plugin has ended"), ours.Close(), theirs.Close())
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), ours.Close(), theirs.Close())
	}
}

// Accept implements [net.Listener].
func (b *bridge) Accept() (net.Conn, error) {
	select {
	case conn := <-b.conns:
		return conn, nil
	case <-b.done:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (b *bridge) Close() error {
	b.once.Do(func() { close(b.done) })
	return nil
}

// Addr implements [net.Listener].
func (*bridge) Addr() net.Addr { return &net.UnixAddr{Name: "bridge", Net: "pipe"} }

func (b *bridge) close() {
	_ = b.Close()
	b.server.Stop()
	b.serving.Wait()
}

// copyStderr begins to write what the plugin prints on standard error, line by line as it is logged, to where its host wants it.
func (l *life) copyStderr() {
	if l.plugin.Config == nil || l.plugin.Config.Stderr == nil || l.spec.Logs == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var copying sync.WaitGroup
	var copied uint64 // the log is that of all lives
	for _, r := range l.spec.Logs.Tail(1) {
		copied = r.Seq
	}
	write := func(r output.Record) {
		if r.Seq > copied && r.Source == output.Stderr {
			_, _ = fmt.Fprintln(l.plugin.Config.Stderr, r.Message) // the plugin does not feel it
		}
		copied = max(copied, r.Seq)
	}
	copying.Go(func() {
		for r := range l.spec.Logs.Follow(ctx, -1) {
			write(r)
		}
		for _, r := range l.spec.Logs.Tail(0) { // what came last
			write(r)
		}
	})
	l.uncopy = func() {
		cancel()
		copying.Wait()
	}
}
