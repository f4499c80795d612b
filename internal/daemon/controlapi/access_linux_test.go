package controlapi

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"connectrpc.com/connect"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// dialAs connects with the credentials of another user. It needs root.
func dialAs(t *testing.T, path string, uid, gid uint32, groups ...uint32) *net.UnixConn {
	t.Helper()
	type result struct {
		conn *net.UnixConn
		err  error
	}
	dialed := make(chan result)
	go func() {
		// The credentials are those of one thread. It stays locked, so it ends with this goroutine and nothing else ever runs on it.
		runtime.LockOSThread()
		var first unsafe.Pointer
		if len(groups) > 0 {
			first = unsafe.Pointer(&groups[0])
		}
		for _, call := range [][4]uintptr{
			{syscall.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0},
			{syscall.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)},
			{syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)},
		} {
			if _, _, errno := syscall.RawSyscall(call[0], call[1], call[2], call[3]); errno != 0 {
				dialed <- result{err: errno}
				return
			}
		}
		conn, err := sock.Dial(context.Background(), path)
		dialed <- result{conn, err}
	}()
	got := <-dialed
	if got.err != nil {
		t.Fatal(got.err)
	}
	t.Cleanup(func() { got.conn.Close() })
	return got.conn
}

// openSocket listens on a socket that every user can connect to.
func openSocket(t *testing.T, gid int) (net.Listener, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to connect as other users")
	}
	dir, err := os.MkdirTemp("", "pb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "control.sock")
	listener, err := sock.Listen(path, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 0, gid); err != nil {
		t.Fatal(err)
	}
	return listener, path
}

// TestRefusedCalls calls every kind of method as a stranger, in every kind of connection.
func TestRefusedCalls(t *testing.T) {
	listener, path := openSocket(t, 0)
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
			DialContext: func(context.Context, string, string) (net.Conn, error) { return dialAs(t, path, 65534, 65534), nil },
			Protocols:   protocols,
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
