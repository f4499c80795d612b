package csi_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/leaktest"
	"github.com/patchbay-dev/patchbay/sdk"
)

// patience is how long a test waits for what should happen at once before it fails.
const patience = 2 * time.Minute

// socketEnv makes the test binary a driver on the socket that is its value.
const socketEnv = "PATCHBAY_TEST_CSI_SOCKET"

// readyEnv makes the test binary a launched driver, which is ready when there is a file with the name that is its value.
const readyEnv = "PATCHBAY_TEST_CSI_READY"

func TestMain(m *testing.M) {
	if file := os.Getenv(readyEnv); file != "" {
		os.Exit(beLaunched(file))
	}
	if socket := os.Getenv(socketEnv); socket != "" {
		os.Exit(beDriver(socket))
	}
	leaktest.Main(m)
}

// beDriver is the main function of a driver that is a process of its own. It ends with its standard input.
func beDriver(socket string) int {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	g := grpc.NewServer()
	newFake().register(g)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until whoever started it ends
		g.Stop()
	}()
	fmt.Println("serving")
	_ = g.Serve(listener) // ends with Stop
	return 0
}

// beLaunched is the main function of a driver that a host launches.
func beLaunched(ready string) int {
	f := newFake()
	f.probe = func(context.Context) (*csipb.ProbeResponse, error) {
		_, err := os.Stat(ready)
		return &csipb.ProbeResponse{Ready: wrapperspb.Bool(err == nil)}, nil
	}
	if err := sdk.Serve(context.Background(), sdk.Plugin{
		Type: registerapi.CSIPlugin, Name: driverName, Versions: versions, Register: f.register,
	}); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// startProcess starts a driver as a process and returns what ends it as SIGKILL does, which the end of the test does at the latest.
func startProcess(t *testing.T, socket string) (kill func()) {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), os.Args[0])
	cmd.Env = append(os.Environ(), socketEnv+"="+socket)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // fails only if it has ended
		_ = cmd.Wait()         // says that it was killed
		_ = stdin.Close()
	})
	t.Cleanup(kill)
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "serving\n" {
		t.Fatalf("the driver says %q, %v", line, err)
	}
	return kill
}

// fake is a CSI driver. What is nil in it has the answer of an ordinary driver; newFake makes one.
type fake struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedNodeServer
	csipb.UnimplementedControllerServer

	probe        func(context.Context) (*csipb.ProbeResponse, error)
	info         func(context.Context) (*csipb.GetPluginInfoResponse, error)
	capabilities func(context.Context) (*csipb.GetPluginCapabilitiesResponse, error)
	nodeInfo     func(context.Context) (*csipb.NodeGetInfoResponse, error)
	nodeCaps     func(context.Context) (*csipb.NodeGetCapabilitiesResponse, error)
	probes       atomic.Int32
}

const driverName = "fake.csi.example.com"

// newFake returns a driver that is ready and serves a node and a controller.
func newFake() *fake {
	return &fake{
		probe: func(context.Context) (*csipb.ProbeResponse, error) {
			return &csipb.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
		},
		info: func(context.Context) (*csipb.GetPluginInfoResponse, error) {
			return &csipb.GetPluginInfoResponse{Name: driverName, VendorVersion: "v3.2.1"}, nil
		},
		capabilities: func(context.Context) (*csipb.GetPluginCapabilitiesResponse, error) {
			return &csipb.GetPluginCapabilitiesResponse{Capabilities: []*csipb.PluginCapability{
				service(csipb.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
				service(csipb.PluginCapability_Service_CONTROLLER_SERVICE),
			}}, nil
		},
		nodeInfo: func(context.Context) (*csipb.NodeGetInfoResponse, error) {
			return &csipb.NodeGetInfoResponse{
				NodeId: "node-7", MaxVolumesPerNode: 16,
				AccessibleTopology: &csipb.Topology{Segments: map[string]string{"com.example/zone": "z1", "rack": "r_2"}},
			}, nil
		},
		nodeCaps: func(context.Context) (*csipb.NodeGetCapabilitiesResponse, error) {
			return &csipb.NodeGetCapabilitiesResponse{}, nil
		},
	}
}

func service(t csipb.PluginCapability_Service_Type) *csipb.PluginCapability {
	return &csipb.PluginCapability{Type: &csipb.PluginCapability_Service_{Service: &csipb.PluginCapability_Service{Type: t}}}
}

func (f *fake) Probe(ctx context.Context, _ *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	f.probes.Add(1)
	return f.probe(ctx)
}

func (f *fake) GetPluginInfo(ctx context.Context, _ *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return f.info(ctx)
}

func (f *fake) GetPluginCapabilities(
	ctx context.Context, _ *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	return f.capabilities(ctx)
}

func (f *fake) NodeGetInfo(ctx context.Context, _ *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return f.nodeInfo(ctx)
}

func (f *fake) NodeGetCapabilities(
	ctx context.Context, _ *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	return f.nodeCaps(ctx)
}

func (f *fake) GetCapacity(context.Context, *csipb.GetCapacityRequest) (*csipb.GetCapacityResponse, error) {
	return &csipb.GetCapacityResponse{AvailableCapacity: 7}, nil
}

func (f *fake) register(s grpc.ServiceRegistrar) {
	csipb.RegisterIdentityServer(s, f)
	csipb.RegisterNodeServer(s, f)
	csipb.RegisterControllerServer(s, f)
}

// server is a gRPC server on a socket.
type server struct {
	socket string
	open   atomic.Int32 // connections
	kill   func()       // ends it as SIGKILL would: the socket stays
}

// serveAt serves on a socket until the end of the test.
func serveAt(t *testing.T, socket string, register func(grpc.ServiceRegistrar)) *server {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	s := &server{socket: socket}
	g := grpc.NewServer()
	register(g)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = g.Serve(&counting{Listener: listener, open: &s.open}) // ends with Stop
	}()
	s.kill = func() {
		g.Stop()
		<-served
	}
	t.Cleanup(s.kill)
	return s
}

// serve serves on a socket of its own.
func serve(t *testing.T, f *fake) *server {
	t.Helper()
	return serveAt(t, filepath.Join(t.TempDir(), "csi.sock"), f.register)
}

// counting counts the open connections that it accepted.
type counting struct {
	net.Listener
	open *atomic.Int32
}

func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	return &counted{Conn: conn, open: c.open}, nil
}

type counted struct {
	net.Conn
	open   *atomic.Int32
	closed atomic.Bool
}

func (c *counted) Close() error {
	if !c.closed.Swap(true) {
		c.open.Add(-1)
	}
	return c.Conn.Close()
}

// eventually waits until something is true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, patience)
		}
		time.Sleep(time.Millisecond)
	}
}
