package proxy_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// TestCompression checks that compressed messages reach the plugin as they are, and so do its answers.
func TestCompression(t *testing.T) {
	encoding := ""
	p := &plugin{unary: func(ctx context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		encoding = grpc.ServerTransportStreamFromContext(ctx).(interface{ RecvCompress() string }).RecvCompress()
		return &testpb.SimpleResponse{Payload: r.GetPayload()}, grpc.SetSendCompressor(ctx, gzip.Name)
	}}
	c, _ := through(t, p)
	r, err := c.UnaryCall(within(t), &testpb.SimpleRequest{Payload: payload(1000)}, grpc.UseCompressor(gzip.Name))
	if err != nil || len(r.GetPayload().GetBody()) != 1000 || encoding != gzip.Name {
		t.Errorf("got %v, %v, encoding %q", r, err, encoding)
	}
}

// post sends a request as a client of this implementation would not, and returns the status of the call and its text.
func post(t *testing.T, path, encoding string, body []byte) (code, message string) {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://x/grpc.testing.TestService/FullDuplexCall",
		bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = http.Header{"Content-Type": {"application/grpc"}, "Grpc-Encoding": {encoding}, "Te": {"trailers"}}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatal(err)
	}
	for _, from := range []http.Header{response.Header, response.Trailer} {
		code, message = cmp.Or(code, from.Get("Grpc-Status")), cmp.Or(message, from.Get("Grpc-Message"))
	}
	return code, message
}

// TestUnknownEncoding checks that a message in an encoding that only the caller knows reaches the plugin, which refuses it.
func TestUnknownEncoding(t *testing.T) {
	code, message := post(t, toPlugin(t, &plugin{}), "x", []byte{1, 0, 0, 0, 0})
	if code != "12" || !strings.Contains(message, `"x"`) {
		t.Errorf("status %s: %s", code, message)
	}
}

// TestCallerMistake announces a message that is too large for the plugin, and does not send it: the caller receives the plugin's status, and
// the call at the plugin ends.
func TestCallerMistake(t *testing.T) {
	ended := make(chan struct{})
	path := toPlugin(t, &plugin{duplex: func(s testpb.TestService_FullDuplexCallServer) error {
		_, err := s.Recv()
		<-s.Context().Done()
		close(ended)
		return err
	}})
	code, message := post(t, path, "identity", binary.BigEndian.AppendUint32([]byte{0}, proxy.MaxMessageSize+1))
	if code != "8" || !strings.Contains(message, "larger than max") {
		t.Errorf("status %s: %s", code, message)
	}
	wait(t, "the call at the plugin ends", ended)
}

// toPlugin serves a plugin and the proxy in front of it, and returns the path of the proxy.
func toPlugin(t *testing.T, p *plugin) string {
	t.Helper()
	server := grpc.NewServer()
	testpb.RegisterTestServiceServer(server, p)
	conn := direct(t, run(t, server))
	return serve(t, func(context.Context, string) (grpc.ClientConnInterface, error) { return conn, nil })
}
