//go:build unix

package registration

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// candidates are the clients among which docs/adr/0005 decides. Each dials, asks GetInfo, notifies and closes.
var candidates = []struct {
	name string
	walk func(ctx context.Context, path string) error
}{
	{"own", walkOwn},
	{"x-net-http2", walkHTTP2},
	{"connect", walkConnect},
	{"grpc-go", walkGRPC},
	{"grpc-go-tuned", walkGRPCTuned},
}

// BenchmarkWalk is one registration after another with a plugin in another process. cpu-µs/op is the time of this process only.
func BenchmarkWalk(b *testing.B) {
	path, _ := startChild(b)
	for _, c := range candidates {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			before := cpu(b)
			for b.Loop() {
				if err := c.walk(b.Context(), path); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((cpu(b)-before)/float64(b.N), "cpu-µs/op")
		})
	}
}

// BenchmarkWalk16 is 16 registrations at a time.
func BenchmarkWalk16(b *testing.B) {
	path, _ := startChild(b)
	for _, c := range candidates {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(max(1, 16/runtime.GOMAXPROCS(0)))
			before := cpu(b)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := c.walk(b.Context(), path); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric((cpu(b)-before)/float64(b.N), "cpu-µs/op")
		})
	}
}

// cpu returns the processor time that this process has used, in microseconds.
func cpu(tb testing.TB) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3
}

func walkOwn(ctx context.Context, path string) error {
	c, err := dialAt(ctx, path)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.GetInfo(ctx, 0); err != nil {
		return err
	}
	return c.Notify(ctx, 0, true, "")
}

// walkGRPC is the usual client: a grpc.ClientConn with default options.
func walkGRPC(ctx context.Context, path string) error { return walkChannel(ctx, path) }

// walkGRPCTuned is the same with small buffers and all that can be switched off.
func walkGRPCTuned(ctx context.Context, path string) error {
	return walkChannel(ctx, path, grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0))
}

func walkChannel(ctx context.Context, path string, options ...grpc.DialOption) error {
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) { return sock.Dial(ctx, path) }))
	conn, err := grpc.NewClient("passthrough:///"+path, options...)
	if err != nil {
		return err
	}
	defer conn.Close()
	api := registerapi.NewRegistrationClient(conn)
	if _, err := api.GetInfo(ctx, &registerapi.InfoRequest{}); err != nil {
		return err
	}
	_, err = api.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true})
	return err
}

func walkConnect(ctx context.Context, path string) error {
	transport := &http2.Transport{
		AllowHTTP: true,
		DialTLSContext: func(ctx context.Context, _, _ string, _ *tls.Config) (net.Conn, error) {
			return sock.Dial(ctx, path)
		},
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	const base = "http://localhost"
	getInfo := connect.NewClient[registerapi.InfoRequest, registerapi.PluginInfo](
		client, base+registerapi.Registration_GetInfo_FullMethodName, connect.WithGRPC())
	if _, err := getInfo.CallUnary(ctx, connect.NewRequest(&registerapi.InfoRequest{})); err != nil {
		return err
	}
	notify := connect.NewClient[registerapi.RegistrationStatus, registerapi.RegistrationStatusResponse](
		client, base+registerapi.Registration_NotifyRegistrationStatus_FullMethodName, connect.WithGRPC())
	_, err := notify.CallUnary(ctx, connect.NewRequest(&registerapi.RegistrationStatus{PluginRegistered: true}))
	return err
}

var http2Transport = sync.OnceValue(func() *http2.Transport { return &http2.Transport{AllowHTTP: true, DisableCompression: true} })

// walkHTTP2 is gRPC by hand over a client connection of golang.org/x/net/http2.
func walkHTTP2(ctx context.Context, path string) error {
	socket, err := sock.Dial(ctx, path)
	if err != nil {
		return err
	}
	conn, err := http2Transport().NewClientConn(socket)
	if err != nil {
		return errors.Join(err, socket.Close())
	}
	defer conn.Close()
	var info registerapi.PluginInfo
	if err := callHTTP2(ctx, conn, registerapi.Registration_GetInfo_FullMethodName, &registerapi.InfoRequest{}, &info); err != nil {
		return err
	}
	return callHTTP2(ctx, conn, registerapi.Registration_NotifyRegistrationStatus_FullMethodName,
		&registerapi.RegistrationStatus{PluginRegistered: true}, &registerapi.RegistrationStatusResponse{})
}

func callHTTP2(ctx context.Context, conn *http2.ClientConn, method string, request, answer proto.Message) error {
	body, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, prefixLen), request)
	if err != nil {
		return err
	}
	setPrefix(body)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
	response, err := conn.RoundTrip(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if s := response.Trailer.Get("Grpc-Status"); s != "0" || len(data) < prefixLen {
		return fmt.Errorf("status %q, %d bytes", s, len(data))
	}
	return proto.Unmarshal(data[prefixLen:], answer)
}
