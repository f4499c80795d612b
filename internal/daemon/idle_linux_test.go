package daemon

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
	"github.com/patchbay-dev/patchbay/api/patchbay/v1/patchbayv1connect"
	"github.com/patchbay-dev/patchbay/internal/usertest"
)

// TestIdleStrangers: a user without a role opens as many connections as he can, and keeps nobody from the control socket.
func TestIdleStrangers(t *testing.T) {
	l := newLab(t)
	const attempts, held = 1000, 16
	closed := make(chan struct{}, attempts)
	usertest.HoldIdle(t, closed, l.config.ControlSocket, stranger, stranger, attempts)
	usertest.AwaitClosed(t, closed, attempts-held)
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
	usertest.AwaitClosed(t, closed, held) // those that were kept
}

// list asks for the plugins as a user.
func (l *lab) list(uid uint32) error {
	l.t.Helper()
	return l.as(uid).Invoke(l.ctx(), patchbayv1connect.ControlServiceListPluginsProcedure, &patchbayv1.ListPluginsRequest{},
		&patchbayv1.ListPluginsResponse{})
}
