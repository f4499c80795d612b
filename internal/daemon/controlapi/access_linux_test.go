package controlapi

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/usertest"
)

// TestRefusedCalls calls every kind of method as a user without a role, over every kind of connection.
func TestRefusedCalls(t *testing.T) {
	listener, path := usertest.Listen(t, 0)
	s := (&API{Authorizer: testGuard(path), Logger: discard}).Serve(listener, func() { t.Error("the server failed") })
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	for _, http2 := range []bool{false, true} {
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(http2)
		protocols.SetHTTP1(!http2)
		transport := &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				return usertest.Dial(t, path, 65534, 65534), nil
			},
			Protocols: protocols,
		}
		t.Cleanup(transport.CloseIdleConnections)
		rpc := patchbayv1connect.NewControlServiceClient(&http.Client{Transport: transport}, "http://x")
		_, err := rpc.GetVersion(t.Context(), &patchbayv1.GetVersionRequest{})
		if connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), "user 65534") {
			t.Errorf("HTTP/2 %t: unary call: got %v", http2, err)
		}
		stream, err := rpc.WatchEvents(t.Context(), &patchbayv1.WatchEventsRequest{Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		if stream.Receive() || connect.CodeOf(stream.Err()) != connect.CodePermissionDenied {
			t.Errorf("HTTP/2 %t: stream: got %v", http2, stream.Err())
		}
		if err := stream.Close(); err != nil {
			t.Error(err)
		}
	}
}
