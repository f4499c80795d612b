package pluginclient_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/host/goplugin/pluginclient"
	"github.com/patchbay-dev/patchbay/launcher"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
)

// brokered is a connection that the broker has made to one process of the plugin.
type brokered struct {
	pid  string
	conn *grpc.ClientConn
	seen sync.Map // which callers were answered
	left atomic.Int64
	all  chan struct{} // closed when all were
}

// broker dispenses until the process that answers is another than the last one, and connects to it through the broker.
func broker(t *testing.T, client *pluginclient.Client, last string, callers int) *brokered {
	t.Helper()
	b := &brokered{all: make(chan struct{})}
	b.left.Store(int64(callers))
	await(t, "another process with a broker", func() bool {
		var p *talker
		pid, err := again(client, &p)
		if err != nil || pid == last {
			return false
		}
		text, err := p.ask("serve")
		if err != nil {
			return false
		}
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return false
		}
		b.pid = pid
		b.conn, err = p.broker.Dial(uint32(id))
		return err == nil
	})
	return b
}

// TestBrokerDuringRestarts: 200 callers on a brokered connection are all answered by each of ten processes of the plugin.
func TestBrokerDuringRestarts(t *testing.T) {
	const callers, restarts = 200, 10
	for name, multiplexed := range map[string]bool{"a socket each": false, "multiplexed": true} {
		t.Run(name, func(t *testing.T) {
			c := config("serve")
			c.AutoMTLS, c.GRPCBrokerMultiplex = true, multiplexed
			client := pluginclient.NewClient(c, func(p *launcher.Plugin) {
				p.Restart.MinBackoff, p.Restart.MaxBackoff, p.Restart.Limit = 10*time.Millisecond, 10*time.Millisecond, -1
			})
			t.Cleanup(client.Kill)
			ctx, cancel := context.WithCancel(t.Context())
			var current atomic.Pointer[brokered]
			current.Store(broker(t, client, "", callers))
			var calling sync.WaitGroup
			for i := range callers {
				calling.Go(func() { call(ctx, &current, i) })
			}
			for restart := range restarts {
				b := current.Load()
				select {
				case <-b.all:
				case <-time.After(5 * time.Minute):
					t.Errorf("after restart %d, %d callers were not answered", restart, b.left.Load())
				}
				kill(t, b.pid)
				current.Store(broker(t, client, b.pid, callers))
				b.conn.Close()
			}
			cancel()
			calling.Wait()
			current.Load().conn.Close()
		})
	}
}

// call calls on the current connection until ctx ends.
func call(ctx context.Context, current *atomic.Pointer[brokered], caller int) {
	for ctx.Err() == nil {
		b := current.Load()
		answer, err := v1beta1.NewExampleClient(b.conn).GetExampleInfo(ctx, &v1beta1.ExampleRequest{Request: "host"})
		if err != nil || answer.GetError() != "hello host" {
			<-time.After(time.Millisecond)
			continue
		}
		if _, before := b.seen.LoadOrStore(caller, true); !before && b.left.Add(-1) == 0 {
			close(b.all)
		}
	}
}
