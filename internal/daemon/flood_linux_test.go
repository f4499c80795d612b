package daemon_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/patchbay-dev/patchbay/client"
	"github.com/patchbay-dev/patchbay/internal/daemon"
)

// TestFloodOfCanceledCalls checks that a caller that makes calls and cancels them, on three connections as fast as the daemon reads, does
// not prevent the other callers of the same plugin, or those of another one, from being answered.
func TestFloodOfCanceledCalls(t *testing.T) {
	for name, control := range map[string]bool{"stable socket": false, "control socket": true} {
		t.Run(name, func(t *testing.T) {
			config := configIn(t)
			config.DispenseDir = filepath.Join(filepath.Dir(config.State), "d")
			start(t, config)
			others := map[string]*grpc.ClientConn{}
			for _, name := range []string{"flooded", "spared"} {
				defer serveExample(t, config, name)()
				others[name] = callerOf(t, config, name, control)
				for end := time.Now().Add(patience); codeOfCall(t, others[name]) != codes.Unimplemented; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("plugin %s cannot be called", name)
					}
				}
			}
			socket := filepath.Join(config.DispenseDir, "ExamplePlugin", "flooded.sock")
			if control {
				socket = config.ControlSocket
			}
			var canceled atomic.Int64
			ctx, stop := context.WithCancel(t.Context())
			var flooding sync.WaitGroup
			defer flooding.Wait()
			defer stop()
			for range 3 {
				flooding.Go(func() {
					for ctx.Err() == nil {
						_ = cancelCalls(ctx, socket, &canceled)
					}
				})
			}
			const calls, most = 100, 200_000
			for i := range calls {
				for name, conn := range others {
					if code := codeOfCall(t, conn); code != codes.Unimplemented {
						t.Fatalf("call %d of another caller of the plugin that is %s ended with %v, after %d canceled calls", i, name, code,
							canceled.Load())
					}
					if n := canceled.Load(); n > most {
						t.Fatalf("%d calls were canceled while another caller of the plugin that is %s got %d answers", n, name, i+1)
					}
				}
			}
		})
	}
}

// callerOf returns a connection to a plugin at its stable socket, or at the control socket.
func callerOf(t *testing.T, config daemon.Options, name string, control bool) *grpc.ClientConn {
	t.Helper()
	var conn *grpc.ClientConn
	var err error
	if control {
		conn, err = client.New(config.ControlSocket).Conn("ExamplePlugin", name)
	} else {
		conn, err = grpc.NewClient("unix:"+filepath.Join(config.DispenseDir, "ExamplePlugin", name+".sock"),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// codeOfCall makes a call, and returns its code. A plugin answers that it has no such method.
func codeOfCall(t *testing.T, conn *grpc.ClientConn) codes.Code {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return status.Code(conn.Invoke(ctx, "/x.Y/None", &emptypb.Empty{}, &emptypb.Empty{}))
}

// cancelCalls makes calls of a plugin, and cancels each at once, until the connection or ctx ends.
func cancelCalls(ctx context.Context, socket string, canceled *atomic.Int64) error {
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
	for id := uint32(1); err == nil; id += 2 {
		block.Reset()
		for _, f := range []hpack.HeaderField{
			{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: "/x.Y/None"},
			{Name: ":authority", Value: "x"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
			{Name: "patchbay-type", Value: "ExamplePlugin"}, {Name: "patchbay-name", Value: "flooded"},
		} {
			_ = encoder.WriteField(f)
		}
		err = errors.Join(framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}),
			framer.WriteRSTStream(id, http2.ErrCodeCancel))
		if id%128 == 127 {
			if _, failed := conn.Write(out.Bytes()); failed != nil {
				return failed
			}
			canceled.Add(64)
			out.Reset()
		}
	}
	return err
}
