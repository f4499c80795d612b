package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"

	"github.com/patchbay-dev/patchbay/host"
	"github.com/patchbay-dev/patchbay/internal/grpcsock"
	"github.com/patchbay-dev/patchbay/internal/judged"
	"github.com/patchbay-dev/patchbay/internal/launch/supervise"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// watchHealth follows whether a plugin that is ready answers, until ctx ends. One that does not offer grpc.health.v1 is left in peace.
func (g *generation) watchHealth(ctx context.Context, socket string) {
	dial, err := g.healthDialer(socket)
	var conn *grpc.ClientConn
	if err == nil {
		conn, err = grpcsock.Dial(socket, grpc.WithContextDialer(dial))
	}
	if err != nil {
		g.unit.observe(EventFailed, socket, fmt.Sprintf("its health cannot be watched: %v", err))
		return
	}
	health := supervise.NewHealth(conn, func(s supervise.HealthStatus) {
		g.setHealth(s, socket)
		g.super.Health(s)
	})
	// Neither can fail: Run says so, and the connection is closed once.
	_ = errors.Join(health.Run(ctx), conn.Close())
}

// healthDialer returns what connects to the plugin. Of one that makes its socket itself, as another user, that user has to listen: it can
// have a link to somebody else's socket in its place, where it may have no right to call.
func (g *generation) healthDialer(socket string) (func(context.Context, string) (net.Conn, error), error) {
	if g.plugin.User == "" || g.plugin.Protocol != nil {
		return func(ctx context.Context, _ string) (net.Conn, error) { return sock.Dial(ctx, socket) }, nil
	}
	uid, err := host.UserID(g.plugin.User)
	return func(ctx context.Context, _ string) (net.Conn, error) {
		conn, _, err := judged.ByUser(ctx, socket, uid)
		return conn, err
	}, err
}

func (g *generation) setHealth(s supervise.HealthStatus, socket string) {
	g.mu.Lock()
	before := g.life.health
	g.life.health = s.State
	if s.State == supervise.Unresponsive || before == supervise.Unresponsive {
		g.life.since = time.Now()
	}
	g.mu.Unlock()
	switch {
	case s.State == supervise.Unresponsive:
		g.unit.observe(EventUnresponsive, socket, fmt.Sprintf("it does not answer health checks: %v", s.Err))
	case before == supervise.Unresponsive:
		g.unit.observe(EventResponsive, socket, "it answers health checks again")
	case s.State == supervise.NotServing:
		g.unit.observe(EventUnhealthy, socket, "it says that it does not serve: "+cmp.Or(errorText(s.Err), "NOT_SERVING"))
	case before == supervise.NotServing:
		g.unit.observe(EventHealthy, socket, "it says that it serves again")
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
