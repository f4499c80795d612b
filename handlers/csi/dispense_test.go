package csi_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/handlers/csi"
	"github.com/patchbay-dev/patchbay/plugin"
)

// openWith opens a registry that has one driver under three types.
func openWith(t *testing.T, s *server, timeouts csi.Timeouts) *dynamicplugins.Store {
	t.Helper()
	registry, err := dynamicplugins.Open(nil, nil, csi.Dispensers(timeouts)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(registry.Shutdown)
	for _, ptype := range []string{"csi-node", "csi-controller", "CSIPlugin"} {
		err := registry.RegisterPlugin(&dynamicplugins.PluginInfo{
			Type: ptype, Name: driverName, AllocID: "1", ConnectionInfo: &dynamicplugins.PluginConnectionInfo{SocketPath: s.socket},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return registry
}

func TestDispense(t *testing.T) {
	registry := openWith(t, serve(t, newFake()), nil)
	node, err := dynamicplugins.Dispense[csipb.NodeClient](registry, "csi-node", driverName)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := node.NodeGetInfo(t.Context(), &csipb.NodeGetInfoRequest{}); err != nil || info.GetNodeId() != "node-7" {
		t.Errorf("NodeGetInfo: %v, %v", info, err)
	}
	controller, err := dynamicplugins.Dispense[csipb.ControllerClient](registry, "csi-controller", driverName)
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := controller.GetCapacity(t.Context(), &csipb.GetCapacityRequest{}); err != nil || answer.GetAvailableCapacity() != 7 {
		t.Errorf("GetCapacity: %v, %v", answer, err)
	}
	identity, err := dynamicplugins.Dispense[csipb.IdentityClient](registry, "CSIPlugin", driverName)
	if err != nil {
		t.Fatal(err)
	}
	if answer, err := identity.GetPluginInfo(t.Context(), &csipb.GetPluginInfoRequest{}); err != nil || answer.GetName() != driverName {
		t.Errorf("GetPluginInfo: %v, %v", answer, err)
	}
	_, err = dynamicplugins.Dispense[csipb.IdentityClient](registry, "csi-node", driverName)
	if !errors.Is(err, dynamicplugins.ErrWrongClient) {
		t.Errorf("a client of another type: %v", err)
	}
}

// TestTimeout: the configured timeout bounds a call, whatever the caller says, and is that of the announced type.
func TestTimeout(t *testing.T) {
	deadlines := make(chan time.Duration, 1)
	f := newFake()
	f.nodeInfo = func(ctx context.Context) (*csipb.NodeGetInfoResponse, error) {
		deadline, ok := ctx.Deadline()
		if !ok {
			deadlines <- 0
		} else {
			deadlines <- time.Until(deadline)
		}
		return &csipb.NodeGetInfoResponse{NodeId: "n"}, nil
	}
	var configured *time.Duration
	registry := openWith(t, serve(t, f), func(ptype, name string) *time.Duration {
		if ptype != "CSIPlugin" || name != driverName {
			t.Errorf("asked for the timeout of %s/%s", ptype, name)
		}
		return configured
	})
	node, err := dynamicplugins.Dispense[csipb.NodeClient](registry, "csi-node", driverName)
	if err != nil {
		t.Fatal(err)
	}
	const none = time.Duration(0)
	for _, c := range []struct{ configured, own, want time.Duration }{
		{none, none, none},
		{none, 2 * time.Hour, 2 * time.Hour},
		{time.Hour, none, time.Hour},
		{time.Hour, 2 * time.Hour, time.Hour},
		{3 * time.Hour, 2 * time.Hour, 2 * time.Hour},
	} {
		configured = nil
		if c.configured != none {
			configured = &c.configured
		}
		ctx, cancel := t.Context(), context.CancelFunc(func() {})
		if c.own != none {
			ctx, cancel = context.WithTimeout(ctx, c.own)
		}
		if _, err := node.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{}); err != nil {
			t.Fatal(err)
		}
		cancel()
		if got := <-deadlines; got > c.want || got < c.want-time.Minute {
			t.Errorf("%+v: the call has %v", c, got)
		}
	}
}

// TestAnnouncedType: whose timeout counts for an entry.
func TestAnnouncedType(t *testing.T) {
	for _, c := range []struct {
		info dynamicplugins.PluginInfo
		want string
	}{
		{dynamicplugins.PluginInfo{Type: "csi-node"}, "CSIPlugin"},
		{dynamicplugins.PluginInfo{Type: "csi-controller"}, "CSIPlugin"},
		{dynamicplugins.PluginInfo{Type: "CSIPlugin"}, "CSIPlugin"},
		{dynamicplugins.PluginInfo{Type: "Mine"}, "Mine"},
		{dynamicplugins.PluginInfo{Type: "csi-node", Instance: &plugin.Instance{Type: "Mine"}}, "Mine"},
	} {
		var asked string
		conn := csi.Bounded(&c.info, nowhere{}, func(ptype, _ string) *time.Duration {
			asked = ptype
			return nil
		})
		_ = conn.Invoke(t.Context(), "/s/m", nil, nil)
		if asked != c.want {
			t.Errorf("%+v: asked for %s", c.info, asked)
		}
	}
}

// nowhere is a connection on which every call succeeds.
type nowhere struct{ grpc.ClientConnInterface }

func (nowhere) Invoke(context.Context, string, any, any, ...grpc.CallOption) error { return nil }

// TestAnswersSoon: whatever call of a driver fails at first, and how, the handler waits for it. A wrong answer is final.
func TestAnswersSoon(t *testing.T) {
	failures := []error{
		errors.New("plain"), status.Error(codes.Internal, "i"), status.Error(codes.NotFound, "n"), status.Error(codes.Aborted, "a"),
	}
	for name, change := range map[string]func(f *fake, fail func() error){
		"probe": func(f *fake, fail func() error) {
			probe := f.probe
			f.probe = func(ctx context.Context) (*csipb.ProbeResponse, error) { return first(ctx, fail, probe) }
		},
		"info": func(f *fake, fail func() error) {
			info := f.info
			f.info = func(ctx context.Context) (*csipb.GetPluginInfoResponse, error) { return first(ctx, fail, info) }
		},
		"capabilities": func(f *fake, fail func() error) {
			capabilities := f.capabilities
			f.capabilities = func(ctx context.Context) (*csipb.GetPluginCapabilitiesResponse, error) {
				return first(ctx, fail, capabilities)
			}
		},
		"node capabilities": func(f *fake, fail func() error) {
			nodeCaps := f.nodeCaps
			nodeError(codes.Unimplemented)(f)
			f.nodeCaps = func(ctx context.Context) (*csipb.NodeGetCapabilitiesResponse, error) {
				return first(ctx, fail, nodeCaps)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake()
			var calls atomic.Int32
			change(f, func() error {
				if n := int(calls.Add(1)); n <= len(failures) {
					return failures[n-1]
				}
				return nil
			})
			if _, err := register(t, serve(t, f)); err != nil || int(calls.Load()) != len(failures)+1 {
				t.Errorf("%v after %d calls", err, calls.Load())
			}
		})
	}
	t.Run("wrong", func(t *testing.T) {
		t.Parallel()
		f := newFake()
		node("", 0, nil)(f)
		if _, err := register(t, serve(t, f)); err == nil || f.probes.Load() != 1 {
			t.Errorf("%v after %d probes, want one", err, f.probes.Load())
		}
	})
}

// first calls answer unless the call is to fail.
func first[T any](ctx context.Context, fail func() error, answer func(context.Context) (*T, error)) (*T, error) {
	if err := fail(); err != nil {
		return nil, err
	}
	return answer(ctx)
}
