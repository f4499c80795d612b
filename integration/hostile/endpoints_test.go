//go:build linux

package hostile

import (
	"context"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	patchbayv1 "github.com/patchbay-dev/patchbay/api/patchbay/v1"
)

// elsewhere is a plugin whose endpoint is what at returns; calls to it end with one of the codes.
func elsewhere(name, does, happens string, at func(*attacker) string, want ...codes.Code) attack {
	return attack{
		name: name, does: "announces that its services are at " + does, happens: happens, bound: "the call itself", named: event("registered: "),
		play: announces(func(a *attacker, i *registerapi.PluginInfo) { i.Endpoint = at(a) }),
		check: func(s *scene) {
			s.Helper()
			err := check(s.Context(), s.dial(s.awaitStable()))
			if got := status.Code(err); len(want) > 0 && !contains(want, got) {
				s.Errorf("a call to it ends with %v, want one of %v", err, want)
			}
		},
	}
}

func contains(list []codes.Code, c codes.Code) bool {
	for _, l := range list {
		if l == c {
			return true
		}
	}
	return false
}

// awaitStable returns the stable socket of the hostile plugin when it is there.
func (s *scene) awaitStable() (socket string) {
	s.Helper()
	s.await("the hostile plugin has a stable socket", func() bool {
		found, _ := filepath.Glob(s.stable(hostileType, "*"))
		if len(found) > 0 {
			socket = found[0]
		}
		return len(found) > 0
	})
	return socket
}

// beside is a path beside the plugin directory.
func beside(a *attacker, name ...string) string {
	return filepath.Join(append([]string{filepath.Dir(a.dir)}, name...)...)
}

func endpointAttacks() []attack {
	const fails = "it is registered, and calls to it fail with UNAVAILABLE"
	return []attack{
		elsewhere("endpoint-directory", "a directory", fails, func(a *attacker) string { return a.dir }, codes.Unavailable),
		elsewhere("endpoint-fifo", "a FIFO", fails, func(a *attacker) string {
			path := filepath.Join(a.dir, "fifo")
			must(syscall.Mkfifo(path, 0o666))
			return path
		}, codes.Unavailable),
		elsewhere("endpoint-neighbour", "the socket of a neighbour", "calls to it reach the neighbour, just like calls on the neighbour's own socket",
			func(a *attacker) string { return filepath.Join(a.dir, "neighbour") }, codes.OK),
		refused("endpoint-relative", "a relative path as its endpoint", "an endpoint must be an absolute path",
			"the endpoint \"../control.sock\"; it must be an absolute path", func(i *registerapi.PluginInfo) { i.Endpoint = "../control.sock" }),
		refused("endpoint-abstract", "an abstract socket, which has no owner, as its endpoint", "an endpoint must not begin with `@`",
			"the endpoint \"@hostile\"; it must not be an abstract socket", func(i *registerapi.PluginInfo) { i.Endpoint = "@hostile" }),
		{
			name: "endpoint-loop", does: "announces its own stable socket as its endpoint, so that each call to it comes back to the daemon",
			happens: "the call that comes back is refused", bound: "one round trip", named: event("registered: "),
			play: announces(func(a *attacker, i *registerapi.PluginInfo) {
				i.Endpoint = beside(a, "dispense", hostileType, "hostile.sock")
			}),
			check: func(s *scene) {
				if err := check(s.Context(), s.dial(s.awaitStable())); !strings.Contains(status.Convert(err).Message(), "leads back") {
					s.Errorf("a call ends with %v", err)
				}
			},
		},
		{
			name: "endpoint-control", does: "announces the control socket as its endpoint, so that anyone who may call plugins would call the daemon with the daemon's own rights",
			happens: "the control API refuses calls that the daemon itself forwarded", bound: "one call", named: event("registered: "),
			play: announces(func(a *attacker, i *registerapi.PluginInfo) { i.Endpoint = beside(a, "control.sock") }),
			check: func(s *scene) {
				ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
				defer cancel()
				conn := s.dial(s.awaitStable())
				err := conn.Invoke(ctx, "/patchbay.v1.ControlService/ListPlugins", &patchbayv1.ListPluginsRequest{}, &patchbayv1.ListPluginsResponse{})
				if status.Code(err) != codes.PermissionDenied {
					s.Errorf("a call of the control API ends with %v", err)
				}
				if err := check(ctx, conn); err == nil {
					s.Error("a call that is forwarded twice succeeds")
				}
			},
		},
	}
}
