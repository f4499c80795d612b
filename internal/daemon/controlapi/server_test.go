package controlapi

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

// TestServerEndsCalls stops a server while a call without an end is in progress.
func TestServerEndsCalls(t *testing.T) {
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "control.sock")
	for name, end := range map[string]func(*server.Server) error{
		"stop alone": (*server.Server).Stop,
		"in two steps": func(s *server.Server) error {
			s.EndCalls()
			rpc := clientOf(t, path)
			_, err := rpc.GetVersion(t.Context(), &patchbayv1.GetVersionRequest{})
			if connect.CodeOf(err) != connect.CodeUnavailable {
				t.Errorf("a new call: got %v, want Unavailable", err)
			}
			return s.Stop()
		},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := sock.Listen(path, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			c := testControl(&recorded{live: make(chan plugin.Event)}, noneLaunched{}, nil, nothingRegistered)
			c.Authorizer = testGuard(path)
			s := c.Serve(listener, func() { t.Error("the server failed") })
			stream, err := clientOf(t, path).WatchEvents(t.Context(), &patchbayv1.WatchEventsRequest{Follow: true})
			if err != nil {
				t.Fatal(err)
			}
			defer stream.Close()
			if !stream.Receive() {
				t.Fatal(stream.Err())
			}
			if err := end(s); err != nil {
				t.Error(err)
			}
			if stream.Receive() || connect.CodeOf(stream.Err()) != connect.CodeUnavailable {
				t.Errorf("the stream ended with %v, want Unavailable", stream.Err())
			}
			if _, err := os.Lstat(path); err == nil {
				t.Error("the socket is still there")
			}
		})
	}
}

func clientOf(t *testing.T, path string) patchbayv1connect.ControlServiceClient {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return sock.Dial(ctx, path) }}
	t.Cleanup(transport.CloseIdleConnections)
	return patchbayv1connect.NewControlServiceClient(&http.Client{Transport: transport}, "http://x")
}
