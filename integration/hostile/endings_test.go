//go:build linux

package hostile

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

var rounds = flag.Int("rounds", 8, "how many processes of each plugin of TestLinksLeftByEndedPlugins leave a link to root's socket")

const (
	// roleLinks is a plugin of go-plugin that leaves a link in the place of its socket as it ends.
	roleLinks = "leaves-links"
	// rootSocket is the name of a socket that only root may connect to.
	rootSocket = "root.sock"
)

var cookie = goplugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "HOSTILE", MagicCookieValue: "plugin"}

// nothing is a plugin without services.
type nothing struct {
	goplugin.NetRPCUnsupportedPlugin
}

func (nothing) GRPCServer(*goplugin.GRPCBroker, *grpc.Server) error { return nil }

func (nothing) GRPCClient(context.Context, *goplugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, nil
}

// leavesLinks serves until it is called, or told to end. Then it puts a link to root's socket in the place of its own, and exits.
func leavesLinks(a *attacker) {
	var own string
	leave := sync.OnceFunc(func() {
		link := own + ".link"
		must(os.Symlink(beside(a, rootSocket), link))
		must(os.Rename(link, own))
	})
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: cookie, Plugins: goplugin.PluginSet{"nothing": nothing{}},
		GRPCServer: func(options []grpc.ServerOption) *grpc.Server {
			found, err := filepath.Glob(filepath.Join(os.Getenv(goplugin.EnvUnixSocketDir), "plugin*"))
			must(err)
			own = found[0]
			return grpc.NewServer(append(options, grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
				leave()
				time.AfterFunc(rand.N(5*time.Millisecond), func() { os.Exit(7) }) // the daemon is met in any of its steps
				return status.Error(codes.DataLoss, strconv.Itoa(os.Getpid()))
			}))...)
		},
	})
	leave()
	os.Exit(0)
}

// TestLinksLeftByEndedPlugins ends plugins of another user that serve, each process of which leaves a link to root's socket in the place of
// its own, while many call them through their stable sockets. The daemon may connect to root's socket, and the plugin's user may not: no
// call gets there.
func TestLinksLeftByEndedPlugins(t *testing.T) {
	if !root {
		t.Skip("it takes root to run a plugin as another user")
	}
	for _, upgrade := range []string{"side-by-side", "handover", "recreate"} {
		for _, mtls := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s,AutoMTLS=%t", upgrade, mtls), func(t *testing.T) {
				t.Parallel()
				newScene(t, &attack{name: roleLinks, launched: fmt.Sprintf(`    protocol: go-plugin
    type: %s
    goPlugin: {cookieKey: %s, cookieValue: %s, protocolVersions: [1], autoMTLS: %t}
    upgrade: %s
    restart: {limit: 1000000, backoff: {min: 1ms, max: 1ms}}
`, hostileType, cookie.MagicCookieKey, cookie.MagicCookieValue, mtls, upgrade)}).leaveLinks(*rounds)
			})
		}
	}
}

// leaveLinks calls the launched hostile plugin until so many of its processes have left a link.
func (s *scene) leaveLinks(rounds int) {
	s.Helper()
	reached := s.serveRoot()
	if _, err := s.client.Launch(s.Context(), launchedName); err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.Context())
	var calling sync.WaitGroup
	defer func() { cancel(); calling.Wait() }()
	var ended sync.Map // by process
	var n atomic.Int64
	for range 2 {
		conn := s.dial(s.stable(hostileType, launchedName))
		calling.Go(func() {
			for ctx.Err() == nil {
				err := conn.Invoke(ctx, "/hostile.Target/Reach", &emptypb.Empty{}, &emptypb.Empty{}, grpc.WaitForReady(true))
				time.Sleep(rand.N(10 * time.Millisecond)) // who calls all the time is too early, and then has to wait
				if status.Code(err) == codes.DataLoss {
					if _, again := ended.LoadOrStore(status.Convert(err).Message(), true); !again {
						n.Add(1)
					}
				}
			}
		})
	}
	calling.Go(func() { // every few processes one is told to end
		for next := int64(3); ctx.Err() == nil; next = n.Load() + 3 {
			for n.Load() < next && ctx.Err() == nil {
				time.Sleep(10 * time.Millisecond)
			}
			_, _ = s.client.Restart(ctx, launchedName) // it need not succeed: the successor is called too
		}
	})
	for seen := int64(0); seen < int64(rounds); {
		s.await("another process leaves a link", func() bool { return n.Load() > seen || reached.Load() > 0 })
		seen = n.Load()
		if calls := reached.Load(); calls > 0 {
			s.Fatalf("after %d processes %d calls have reached root's socket", seen, calls)
		}
	}
	s.Logf("%d processes have left a link, and no call has reached root's socket", n.Load())
	if _, err := s.client.Stop(s.Context(), launchedName); err != nil {
		s.Error(err)
	}
}

// serveRoot serves a socket that only root may connect to, and counts the calls there.
func (s *scene) serveRoot() (reached *atomic.Int64) {
	s.Helper()
	listener, err := net.Listen("unix", s.path(rootSocket))
	if err != nil {
		s.Fatal(err)
	}
	if err := os.Chmod(s.path(rootSocket), 0o600); err != nil {
		s.Fatal(err)
	}
	reached = new(atomic.Int64)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		reached.Add(1)
		return status.Error(codes.Aborted, "this is root's service")
	}))
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	s.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			s.Error(err)
		}
	})
	return reached
}

// TestRefusalByACaller: whoever may call a plugin is not its host, and cannot tell it that it is refused.
func TestRefusalByACaller(t *testing.T) {
	if !root {
		t.Skip("it takes root to run a plugin as another user")
	}
	t.Parallel()
	s := newScene(t, &attack{name: roleNeighbour, launched: "    start: onDemand\n    idle: 10ms\n"})
	if _, err := s.client.Launch(t.Context(), launchedName); err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(s.plugins)
	s.await("the plugin is idle", func() bool {
		found, err := s.client.Get(t.Context(), "Neighbour", name)
		return err == nil && len(found) == 1 && found[0].State == "idle"
	})
	s.await("there is its stable socket", func() bool { _, err := os.Lstat(s.stable("Neighbour", name)); return err == nil })
	forwarded, err := s.client.Conn("Neighbour", name)
	if err != nil {
		t.Fatal(err)
	}
	defer forwarded.Close()
	stable := s.dial(s.stable("Neighbour", name))
	for way, conn := range map[string]grpc.ClientConnInterface{"stable socket": stable, "control socket": forwarded} {
		registration := registerapi.NewRegistrationClient(conn)
		if _, err := registration.GetInfo(t.Context(), &registerapi.InfoRequest{}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("a question who it is through the %s ends with %v", way, err)
		}
		if _, err := registration.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("a notification through the %s ends with %v", way, err)
		}
	}
	if err := stable.Invoke(t.Context(), "/hostile.Target/Reach", &emptypb.Empty{}, &emptypb.Empty{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("a later call of another caller ends with %v", err)
	}
}
