package daemon

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
)

// idle is what a client of HTTP/2 says that then says nothing any more.
const idle = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"

// hoard has a user hold connections without a call, and tells of each that the daemon closes.
func hoard(t *testing.T, closed chan<- struct{}, path string, uid, gid uint32, count int) {
	t.Helper()
	for range count {
		conn := dialAs(t, path, uid, gid)
		go func() {
			_, _ = io.WriteString(conn, idle)
			_, _ = io.Copy(io.Discard, conn)
			closed <- struct{}{}
		}()
	}
}

func await(t *testing.T, closed <-chan struct{}, count int) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for n := range count {
		select {
		case <-closed:
		case <-deadline:
			t.Fatalf("%d idle connections were closed, want %d", n, count)
		}
	}
}

// TestIdleStrangers: a user without a role opens as many connections as he can, and keeps nobody from the control socket.
func TestIdleStrangers(t *testing.T) {
	l := newLab(t)
	const attempts, held = 1000, 16
	closed := make(chan struct{}, attempts)
	hoard(t, closed, l.config.ControlSocket, stranger, stranger, attempts)
	await(t, closed, attempts-held)
	for _, uid := range []uint32{0, reader} {
		if err := l.list(uid); err != nil {
			t.Errorf("user %d: %v", uid, err)
		}
	}
	if err := l.list(stranger + 1); status.Code(err) != codes.PermissionDenied {
		t.Errorf("another stranger is told %v, want that he has no role", err)
	}
	told := slices.DeleteFunc(l.log.lines(), func(line string) bool { return !strings.Contains(line, "too many are open") })
	if want := fmt.Sprintf("socket=control uid=%d ofUser=16", stranger); len(told) != 1 || !strings.Contains(told[0], want) {
		t.Errorf("the log says of it %q, want one line with %q", told, want)
	}
	await(t, closed, held) // those that were kept
}

// list asks for the plugins as a user.
func (l *lab) list(uid uint32) error {
	l.t.Helper()
	return l.as(uid).Invoke(l.ctx(), patchbayv1connect.ControlServiceListPluginsProcedure, &patchbayv1.ListPluginsRequest{},
		&patchbayv1.ListPluginsResponse{})
}
