package reconciler_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
)

// BenchmarkPipeline is the cost of one registration without its plugin and its disk: what the reconciler itself adds.
func BenchmarkPipeline(b *testing.B) {
	desired := cache.NewDesired()
	registered := make(chan struct{}, b.N+1)
	r := reconciler.New(reconciler.Config{
		Desired: desired, Transport: instantTransport{},
		Observe: func(e plugin.Event) {
			if e.Kind == plugin.EventRegistered {
				registered <- struct{}{}
			}
		},
	})
	r.SetHandler("T", instantHandler{})
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	paths := make([]string, b.N)
	for i := range paths {
		paths[i] = fmt.Sprint("/run/plugins/", i, ".sock")
	}
	b.ReportAllocs()
	b.ResetTimer()
	for _, path := range paths {
		if err := desired.AddOrUpdatePlugin(path); err != nil {
			b.Fatal(err)
		}
	}
	for range b.N {
		<-registered
	}
	b.StopTimer()
	cancel()
	if err := <-ended; err != nil {
		b.Fatal(err)
	}
}

type instantTransport struct{}

func (instantTransport) Dial(_ context.Context, _ time.Duration, path string, _ plugin.SocketID) (reconciler.Conn, error) {
	return instantConn{path}, nil
}

func (instantTransport) Probe(context.Context, string, plugin.SocketID, func()) (func(), error) {
	return func() {}, nil
}

func (instantTransport) Latencies() (connecting, answering time.Duration) { return 0, 0 }

func (instantTransport) Refused(error) bool { return false }

func (instantTransport) WatchProcess(plugin.Peer, func()) (func(), error) { return nil, io.EOF }

func (instantTransport) Listens(plugin.SocketID, plugin.Peer) bool { return false }

func (instantTransport) Source(string) plugin.Source { return plugin.SourceDiscovered }

func (instantTransport) Withdrawn(string) error { return nil }

type instantConn struct{ path string }

func (c instantConn) GetInfo(context.Context, time.Duration) (plugin.Info, error) {
	return plugin.Info{Type: "T", Name: c.path, Versions: []string{"v1"}}, nil
}

func (instantConn) Notify(context.Context, time.Duration, bool, string) error { return nil }

func (instantConn) Peer() plugin.Peer { return plugin.Peer{} }

func (instantConn) Account() plugin.Account { return plugin.Account{} }

func (instantConn) Watch(func()) (func(), error) { return func() {}, nil }

func (instantConn) Close() error { return nil }

type instantHandler struct{}

func (instantHandler) ValidatePlugin(string, string, []string) error { return nil }

func (instantHandler) RegisterPlugin(string, string, []string, *time.Duration) error { return nil }

func (instantHandler) DeRegisterPlugin(string) {}
