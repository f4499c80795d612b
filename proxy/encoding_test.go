package proxy_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding/gzip"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
)

func TestCompression(t *testing.T) {
	var encoding []string
	p := &plugin{unary: func(ctx context.Context, r *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		encoding = md.Get("grpc-encoding")
		return &testpb.SimpleResponse{Payload: r.GetPayload()}, grpc.SetSendCompressor(ctx, gzip.Name)
	}}
	c, _ := through(t, p)
	r, err := c.UnaryCall(within(t), &testpb.SimpleRequest{Payload: payload(1000)}, grpc.UseCompressor(gzip.Name))
	if err != nil || len(r.GetPayload().GetBody()) != 1000 || encoding != nil {
		t.Errorf("got %v, %v, encoding %v", r, err, encoding)
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

func TestUnknownEncoding(t *testing.T) {
	path := serve(t, func(context.Context, string) (grpc.ClientConnInterface, error) { return nil, errors.New("asked") })
	code, message := post(t, path, "x", []byte{1, 0, 0, 0, 0})
	if code != "12" || !strings.Contains(message, `"x"`) {
		t.Errorf("status %s: %s", code, message)
	}
}

// TestCallerMistake announces a message that is too large: the caller is told, and the plugin's call ends.
