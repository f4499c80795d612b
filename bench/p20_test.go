package bench

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/client"
)

// floodConns is how many connections the flood of P20 has.
const floodConns = 3

// flood opens calls and cancels them, as fast as the socket takes them, on several connections, until ctx ends. A connection that is closed
// is replaced.
func flood(ctx context.Context, socket string) error {
	var running sync.WaitGroup
	for range floodConns {
		running.Go(func() {
			for ctx.Err() == nil {
				_ = floodOnce(ctx, socket)
			}
		})
	}
	running.Wait()
	return nil
}

func floodOnce(ctx context.Context, socket string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	var out, block bytes.Buffer
	out.WriteString(http2.ClientPreface)
	framer, encoder := http2.NewFramer(&out, nil), hpack.NewEncoder(&block)
	err = errors.Join(framer.WriteSettings(), framer.WriteSettingsAck())
	for id := uint32(1); err == nil && id < 1<<31-200; {
		for range 64 {
			block.Reset()
			for _, f := range []hpack.HeaderField{
				{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/bench/Echo"},
				{Name: ":authority", Value: "localhost"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
				{Name: "patchbay-type", Value: "Bench"}, {Name: "patchbay-name", Value: "plugin"},
			} {
				_ = encoder.WriteField(f)
			}
			err = errors.Join(err, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}),
				framer.WriteRSTStream(id, http2.ErrCodeCancel))
			id += 2
		}
		if _, failed := conn.Write(out.Bytes()); failed != nil {
			return failed
		}
		out.Reset()
	}
	return err
}

// benchP20 measures how many calls a plugin's other callers make while somebody floods it with calls that are canceled: through the stable
// socket of a daemon ("stable"), its control socket ("control"), and a proxy that is only grpc-go ("floor"). Callers, flood, plugins,
// daemon and floor are processes of their own.
func benchP20(b testing.TB) {
	rounds, took := 10, time.Second
	if small(b) {
		rounds, took = 1, 50*time.Millisecond
	}
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		b.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Mkdir(filepath.Join(dir, "plugins"), 0o750); err != nil {
		b.Fatal(err)
	}
	plugin := func(name string) string { return filepath.Join(dir, "plugins", name+".sock") }
	stable := func(name string) string { return filepath.Join(dir, "d", "Bench", name+".sock") }
	floor := func(name string) string { return filepath.Join(dir, "floor-"+name+".sock") }
	for _, p := range []struct{ role, socket string }{
		{"proxied-plugin", plugin("plugin")}, {"proxied-other", plugin("other")}, {"proxied-floor", floor("other")},
		{"proxied-daemon", stable("plugin")},
	} {
		defer startProxied(b, p.role, dir, p.socket)()
	}
	dial := func(socket string) *grpc.ClientConn {
		conn, err := dialBytes(socket)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	control := client.New(filepath.Join(dir, "control.sock"))
	routed := func(name string) *grpc.ClientConn {
		conn, err := control.Conn("Bench", name)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	ways := []flooded{
		{"floor", floor("plugin"), dial(floor("plugin")), dial(floor("other"))},
		{"stable", stable("plugin"), dial(stable("plugin")), dial(stable("other"))},
		{"control", filepath.Join(dir, "control.sock"), routed("plugin"), routed("other")},
	}
	if err := ways[1].waitForOther(); err != nil {
		b.Fatal(err)
	}
	for round := range 1 + rounds {
		turns(ways, round, func(w flooded) {
			quiet, quietOther := w.rate(took)
			stop := startProxied(b, "proxied-flood", w.socket, w.socket)
			_, _ = w.rate(took) // the limits allow more in the beginning
			same, other := w.rate(took)
			stop()
			if round > 0 { // the first warms up
				w.record(b, "same", same, quiet)
				w.record(b, "other", other, quietOther)
			}
		})
	}
}

// flooded is one way to two plugins, of which the first is flooded at a socket.
type flooded struct {
	name, socket string
	same, other  *grpc.ClientConn
}

// waitForOther waits until the plugin that is not flooded can be called.
func (w flooded) waitForOther() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	request, response := make([]byte, 32), []byte(nil)
	for {
		err := w.other.Invoke(ctx, "/bench/Echo", &request, &response, grpc.ForceCodec(bytesCodec{}), grpc.WaitForReady(true))
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

func (w flooded) record(b testing.TB, callers string, calls, quiet float64) {
	b.Helper()
	record(b, "P20/callers="+callers+"/"+w.name, int(calls), metrics{"of-quiet", calls / quiet, "calls/s", calls, "quiet-calls/s", quiet})
}

// rate returns how many calls a second the callers of both plugins make, one after the other.
func (w flooded) rate(took time.Duration) (same, other float64) {
	return rateOf(w.same, took), rateOf(w.other, took)
}

// rateOf returns the calls per second that the callers complete.
func rateOf(conn *grpc.ClientConn, took time.Duration) float64 {
	const callers = 8
	ctx, cancel := context.WithTimeout(context.Background(), took)
	defer cancel()
	var calls atomic.Int64
	var running sync.WaitGroup
	for range callers {
		running.Go(func() {
			request, response := make([]byte, 32), []byte(nil)
			for conn.Invoke(ctx, "/bench/Echo", &request, &response, grpc.ForceCodec(bytesCodec{})) == nil {
				calls.Add(1)
			}
		})
	}
	running.Wait()
	return float64(calls.Load()) / took.Seconds()
}
