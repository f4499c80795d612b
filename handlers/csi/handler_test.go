package csi_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/handlers/csi"
	"github.com/patchbay-dev/patchbay/plugin"
)

var versions = []string{"1.0.0", "1.11.0"}

// register has a driver registered by a handler that waits for minutes.
func register(t *testing.T, s *server) (plugin.Registration, error) {
	t.Helper()
	return registerWithin(t, s, patience)
}

// registerWithin has a driver registered by a handler that asks it again until a time has passed.
func registerWithin(t *testing.T, s *server, ready time.Duration) (plugin.Registration, error) {
	t.Helper()
	h := csi.NewHandler(csi.Options{CallTimeout: patience, ReadyTimeout: ready})
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	return h.RegisterPluginContext(ctx, driverName, s.socket, versions, nil)
}

func TestRegister(t *testing.T) {
	s := serve(t, newFake())
	got, err := register(t, s)
	if err != nil {
		t.Fatal(err)
	}
	want := plugin.Registration{
		Roles:   []string{"csi-node", "csi-controller"},
		Version: "v3.2.1",
		Details: map[string]string{
			"csi/version":              "1.11.0",
			"csi/capabilities":         "CONTROLLER_SERVICE,VOLUME_ACCESSIBILITY_CONSTRAINTS",
			"csi/node-id":              "node-7",
			"csi/max-volumes-per-node": "16",
			"csi/topology":             `{"com.example/zone":"z1","rack":"r_2"}`,
		},
		WatchEndpoint: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	node, ok := csi.NodeInfoOf(&dynamicplugins.PluginInfo{Options: got.Details})
	wantNode := csi.NodeInfo{
		NodeID: "node-7", MaxVolumesPerNode: 16, Topology: map[string]string{"com.example/zone": "z1", "rack": "r_2"},
	}
	if diff := cmp.Diff(wantNode, node); diff != "" || !ok {
		t.Errorf("NodeInfoOf: %v, -want +got:\n%s", ok, diff)
	}
	eventually(t, "no connection is left", func() bool { return s.open.Load() == 0 })

	again, err := register(t, s)
	if diff := cmp.Diff(got, again); diff != "" || err != nil {
		t.Errorf("registered again: %v, %s", err, diff)
	}
	if err := csi.NewHandler(csi.Options{}).RegisterPlugin(driverName, s.socket, versions, nil); err != nil {
		t.Errorf("RegisterPlugin: %v", err)
	}
}

// TestRoles: what a driver is registered as is what it serves.
func TestRoles(t *testing.T) {
	unimplemented := status.Error(codes.Unimplemented, "no")
	noNodeInfo := func(context.Context) (*csipb.NodeGetInfoResponse, error) { return nil, unimplemented }
	for name, c := range map[string]struct {
		change func(*fake)
		want   []string
		node   bool
	}{
		"no controller": {
			func(f *fake) {
				f.capabilities = func(context.Context) (*csipb.GetPluginCapabilitiesResponse, error) {
					return &csipb.GetPluginCapabilitiesResponse{Capabilities: []*csipb.PluginCapability{
						nil, {}, service(csipb.PluginCapability_Service_UNKNOWN), service(77),
						service(csipb.PluginCapability_Service_GROUP_CONTROLLER_SERVICE),
					}}, nil
				}
			},
			[]string{"csi-node"}, true,
		},
		"a controller alone": {
			func(f *fake) {
				f.nodeInfo = noNodeInfo
				f.nodeCaps = func(context.Context) (*csipb.NodeGetCapabilitiesResponse, error) { return nil, unimplemented }
			},
			[]string{"csi-controller"}, false,
		},
		"a node that says nothing of itself": {func(f *fake) { f.nodeInfo = noNodeInfo }, []string{"csi-node", "csi-controller"}, false},
		"a probe that says nothing": {
			func(f *fake) {
				f.probe = func(context.Context) (*csipb.ProbeResponse, error) { return &csipb.ProbeResponse{}, nil }
			},
			[]string{"csi-node", "csi-controller"}, true,
		},
		"no probe": {
			func(f *fake) {
				f.probe = func(context.Context) (*csipb.ProbeResponse, error) { return nil, unimplemented }
			},
			[]string{"csi-node", "csi-controller"}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			c.change(f)
			got, err := register(t, serve(t, f))
			if err != nil || !slices.Equal(got.Roles, c.want) {
				t.Errorf("roles %v, %v, want %v", got.Roles, err, c.want)
			}
			if _, ok := csi.NodeInfoOf(&dynamicplugins.PluginInfo{Options: got.Details}); ok != c.node {
				t.Errorf("node info: %v", got.Details)
			}
		})
	}
}

// TestRefused: a driver that is wrong is told what is wrong, in bounded length.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fake)
		want   string
	}{
		"another name":   {named("other.example.com"), `own name is "other.example.com", and it was registered as fake.csi.example.com; register`},
		"no name":        {named(""), `own name is "", `},
		"a long name":    {named(strings.Repeat("x", 15<<10)), `own name is "x{256}"…, `},
		"a huge answer":  {named(strings.Repeat("x", 16<<10)), `GetPluginInfo: ResourceExhausted: `},
		"control in it":  {named("a\x1b[2J\n"), `own name is "a\\x1b\[2J\\n", `},
		"long version":   {version(strings.Repeat("1", 129)), `vendor_version has 129 bytes; 128 are allowed`},
		"escape version": {version("1\x1b[31m"), `vendor_version "1\\x1b\[31m" has characters that cannot be printed`},
		"unhealthy":      {probe(codes.Internal, "disk on fire"), `Probe: Internal: "disk on fire"`},
		"long text":      {probe(codes.Internal, strings.Repeat("\x1b", 5000)), `Probe: Internal: "(\\x1b){256}"…$`},
		"no such driver": {info(codes.Unimplemented), `GetPluginInfo: Unimplemented: .*serve csi.v1.Identity there`},
		"no capabilities": {func(f *fake) {
			f.capabilities = func(context.Context) (*csipb.GetPluginCapabilitiesResponse, error) {
				return nil, status.Error(codes.PermissionDenied, "you")
			}
		}, `GetPluginCapabilities: PermissionDenied: "you"`},
		"serves nothing": {func(f *fake) {
			f.capabilities = func(context.Context) (*csipb.GetPluginCapabilitiesResponse, error) {
				return &csipb.GetPluginCapabilitiesResponse{}, nil
			}
			f.nodeInfo = func(context.Context) (*csipb.NodeGetInfoResponse, error) {
				return nil, status.Error(codes.Unimplemented, "")
			}
			f.nodeCaps = func(context.Context) (*csipb.NodeGetCapabilitiesResponse, error) {
				return nil, status.Error(codes.Unimplemented, "")
			}
		}, `serves no node, and has not the capability CONTROLLER_SERVICE`},
		"node fails":     {nodeError(codes.Internal), `NodeGetInfo: Internal: `},
		"no node ID":     {node("", 0, nil), `NodeGetInfo: the node ID is empty; it is required`},
		"long node ID":   {node(strings.Repeat("n", 257), 0, nil), `the node ID has 257 bytes; 256 are allowed`},
		"NUL node ID":    {node("a\x00", 0, nil), `the node ID "a\\x00" has characters that cannot be printed`},
		"negative limit": {node("n", -1, nil), `max_volumes_per_node is -1; it must not be negative`},
		"topology key":   {node("n", 0, map[string]string{"a/b/c": "v"}), `"a/b/c" is not a topology key: `},
		"topology prefix": {
			node("n", 0, map[string]string{"Com.example/zone": "v"}), `"Com.example/zone" is not a topology key: `,
		},
		"empty key":   {node("n", 0, map[string]string{"": "v"}), `"" is not a topology key: `},
		"empty value": {node("n", 0, map[string]string{"k": ""}), `"", the value of topology key k, is not a topology segment`},
		"long value": {
			node("n", 0, map[string]string{"k": strings.Repeat("v", 64)}), `"v{64}", the value of topology key k, is not a topology segment`,
		},
		"equal keys":  {node("n", 0, map[string]string{"zone": "a", "Zone": "b"}), `topology key (zone|Zone) is there twice`},
		"many keys":   {node("n", 0, manySegments(850)), `the topology is larger than the 4096 bytes that are allowed`},
		"a flood":     {node("n", 0, manySegments(1e5)), `NodeGetInfo: ResourceExhausted: `},
		"a large key": {node("n", 0, map[string]string{strings.Repeat("k", 15<<10): "v"}), `the topology is larger than`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			c.change(f)
			s := serve(t, f)
			got, err := registerWithin(t, s, 1)
			if err == nil || errors.Is(err, cache.ErrRetry) || !regexp.MustCompile(c.want).MatchString(err.Error()) {
				t.Fatalf("got %v, want an error that is final and matches %s", err, c.want)
			}
			if !strings.HasPrefix(err.Error(), "cannot use CSI driver fake.csi.example.com at "+s.socket+": ") || len(err.Error()) > 1600 {
				t.Errorf("%d bytes: %v", len(err.Error()), err)
			}
			if diff := cmp.Diff(plugin.Registration{}, got); diff != "" {
				t.Errorf("something is left: %s", diff)
			}
			eventually(t, "no connection is left", func() bool { return s.open.Load() == 0 })
		})
	}
}

func named(name string) func(*fake) {
	return func(f *fake) {
		f.info = func(context.Context) (*csipb.GetPluginInfoResponse, error) {
			return &csipb.GetPluginInfoResponse{Name: name, VendorVersion: "1"}, nil
		}
	}
}

func version(v string) func(*fake) {
	return func(f *fake) {
		f.info = func(context.Context) (*csipb.GetPluginInfoResponse, error) {
			return &csipb.GetPluginInfoResponse{Name: driverName, VendorVersion: v}, nil
		}
	}
}

func info(code codes.Code) func(*fake) {
	return func(f *fake) {
		f.info = func(context.Context) (*csipb.GetPluginInfoResponse, error) { return nil, status.Error(code, "no") }
	}
}

func probe(code codes.Code, text string) func(*fake) {
	return func(f *fake) {
		f.probe = func(context.Context) (*csipb.ProbeResponse, error) { return nil, status.Error(code, text) }
	}
}

func node(id string, limit int64, segments map[string]string) func(*fake) {
	return func(f *fake) {
		f.nodeInfo = func(context.Context) (*csipb.NodeGetInfoResponse, error) {
			return &csipb.NodeGetInfoResponse{
				NodeId: id, MaxVolumesPerNode: limit, AccessibleTopology: &csipb.Topology{Segments: segments},
			}, nil
		}
	}
}

func nodeError(code codes.Code) func(*fake) {
	return func(f *fake) {
		f.nodeInfo = func(context.Context) (*csipb.NodeGetInfoResponse, error) { return nil, status.Error(code, "no") }
	}
}

func manySegments(n int) map[string]string {
	segments := map[string]string{}
	for i := range n {
		segments[fmt.Sprintf("key%d", i)] = "value"
	}
	return segments
}

// TestNotYet: a driver that may be well soon is not sent a refusal.
func TestNotYet(t *testing.T) {
	hang := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for name, c := range map[string]struct {
		change func(*fake)
		want   string
	}{
		"never ready": {func(f *fake) {
			f.probe = func(context.Context) (*csipb.ProbeResponse, error) {
				return &csipb.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
			}
		}, `not ready within 3s: it says that it is not ready`},
		"precondition": {probe(codes.FailedPrecondition, "no disk"), `not ready within 3s: Probe: FailedPrecondition: "no disk"`},
		"unavailable":  {probe(codes.Unavailable, "soon"), `not ready within 3s: Probe: Unavailable: "soon"`},
		"hanging probe": {func(f *fake) {
			f.probe = func(ctx context.Context) (*csipb.ProbeResponse, error) { return nil, hang(ctx) }
		}, `not ready within 3s: Probe: DeadlineExceeded: `},
		"hanging name": {func(f *fake) {
			f.info = func(ctx context.Context) (*csipb.GetPluginInfoResponse, error) { return nil, hang(ctx) }
		}, `GetPluginInfo: DeadlineExceeded: `},
		"hanging node": {func(f *fake) {
			f.nodeInfo = func(ctx context.Context) (*csipb.NodeGetInfoResponse, error) { return nil, hang(ctx) }
		}, `NodeGetInfo: DeadlineExceeded: `},
		"node not yet": {nodeError(codes.Unavailable), `NodeGetInfo: Unavailable: "no"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake()
			c.change(f)
			s := serve(t, f)
			notYet(t, s.socket, c.want)
			eventually(t, "no connection is left", func() bool { return s.open.Load() == 0 })
		})
	}
	t.Run("no socket", func(t *testing.T) {
		t.Parallel()
		notYet(t, filepath.Join(t.TempDir(), "none.sock"), `not ready within 3s: Probe: .*no such file`)
	})
	t.Run("nobody accepts", func(t *testing.T) {
		t.Parallel()
		s := serve(t, newFake())
		s.kill()
		notYet(t, s.socket, `not ready within 3s: Probe: .*connection refused`)
	})
	t.Run("mute", func(t *testing.T) {
		t.Parallel()
		socket := filepath.Join(t.TempDir(), "mute.sock")
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		notYet(t, socket, `not ready within 3s: Probe: `)
	})
}

// notYet has a handler without patience register what is at a socket.
func notYet(t *testing.T, socket, want string) {
	t.Helper()
	h := csi.NewHandler(csi.Options{ReadyTimeout: 3 * time.Second})
	timeout := 2 * time.Second
	_, err := h.RegisterPluginContext(t.Context(), driverName, socket, versions, &timeout)
	if !errors.Is(err, cache.ErrRetry) || !regexp.MustCompile(want).MatchString(err.Error()) {
		t.Errorf("got %v, want an error that wraps ErrRetry and matches %s", err, want)
	}
}

// TestClientTimeout: the timeout that is configured for a plugin goes before that of the handler.
func TestClientTimeout(t *testing.T) {
	deadlines := make(chan time.Duration, 1)
	f := newFake()
	f.info = func(ctx context.Context) (*csipb.GetPluginInfoResponse, error) {
		deadline, _ := ctx.Deadline()
		deadlines <- time.Until(deadline)
		return &csipb.GetPluginInfoResponse{Name: driverName}, nil
	}
	s := serve(t, f)
	h := csi.NewHandler(csi.Options{CallTimeout: time.Hour})
	configured, none := 30*time.Hour, time.Duration(0)
	for _, c := range []struct {
		timeout *time.Duration
		want    time.Duration
	}{{nil, time.Hour}, {&none, time.Hour}, {&configured, configured}} {
		if err := h.RegisterPlugin(driverName, s.socket, versions, c.timeout); err != nil {
			t.Fatal(err)
		}
		if got := <-deadlines; got > c.want || got < c.want-time.Minute {
			t.Errorf("a call has %v, want %v", got, c.want)
		}
	}
}

// TestBecomesReady: the handler waits for a driver that starts.
func TestBecomesReady(t *testing.T) {
	f := newFake()
	f.probe = func(context.Context) (*csipb.ProbeResponse, error) {
		switch f.probes.Load() {
		case 1:
			return nil, status.Error(codes.Unavailable, "starting")
		case 2:
			return nil, status.Error(codes.FailedPrecondition, "starting")
		case 3:
			return &csipb.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
		}
		return &csipb.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
	}
	if _, err := register(t, serve(t, f)); err != nil || f.probes.Load() != 4 {
		t.Errorf("%v after %d probes", err, f.probes.Load())
	}
}

// TestAppears: the socket may appear while the handler waits.
func TestAppears(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "late.sock")
	registered := make(chan error, 1)
	go func() {
		_, err := register(t, &server{socket: socket})
		registered <- err
	}()
	serveAt(t, socket, newFake().register)
	if err := <-registered; err != nil {
		t.Error(err)
	}
}

// TestInterrupted: the end of the context ends the wait, and any call.
func TestInterrupted(t *testing.T) {
	for _, hanging := range []string{"probe", "node", "pause"} {
		t.Run(hanging, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f := newFake()
			switch hanging {
			case "probe":
				f.probe = func(ctx context.Context) (*csipb.ProbeResponse, error) {
					cancel()
					<-ctx.Done()
					return nil, ctx.Err()
				}
			case "node":
				f.nodeInfo = func(ctx context.Context) (*csipb.NodeGetInfoResponse, error) {
					cancel()
					<-ctx.Done()
					return nil, ctx.Err()
				}
			case "pause":
				f.probe = func(context.Context) (*csipb.ProbeResponse, error) {
					time.AfterFunc(20*time.Millisecond, cancel)
					return &csipb.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
				}
			}
			s := serve(t, f)
			h := csi.NewHandler(csi.Options{CallTimeout: time.Hour, ReadyTimeout: time.Hour})
			_, err := h.RegisterPluginContext(ctx, driverName, s.socket, versions, nil)
			if !errors.Is(err, cache.ErrRetry) {
				t.Errorf("got %v", err)
			}
			eventually(t, "no connection is left", func() bool { return s.open.Load() == 0 })
		})
	}
}

// TestConcurrent: a driver that hangs holds up itself only.
func TestConcurrent(t *testing.T) {
	h := csi.NewHandler(csi.Options{CallTimeout: time.Hour, ReadyTimeout: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	hanging := newFake()
	began := make(chan struct{})
	hanging.probe = func(ctx context.Context) (*csipb.ProbeResponse, error) {
		close(began)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s := serve(t, hanging)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = h.RegisterPluginContext(ctx, driverName, s.socket, versions, nil) // fails with the context
	}()
	<-began
	var all sync.WaitGroup
	for i := range 32 {
		all.Go(func() {
			f := newFake()
			name := fmt.Sprintf("driver-%d", i)
			named(name)(f)
			s := serve(t, f)
			for range 3 {
				if err := h.ValidatePlugin(name, s.socket, versions); err != nil {
					t.Error(err)
				}
				if _, err := h.RegisterPluginContext(t.Context(), name, s.socket, versions, nil); err != nil {
					t.Error(err)
				}
			}
			h.DeRegisterPlugin(name)
		})
	}
	all.Wait()
	cancel()
	<-ended
}
