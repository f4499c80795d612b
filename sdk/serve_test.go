//go:build unix

package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk"
	"github.com/patchbay-dev/patchbay/sdk/sdktest"
)

func TestServeUntilASignal(t *testing.T) {
	host := sdktest.NewHost(t, "Greeter")
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		path := host.Socket("hello.sock")
		plugin := start(t, role{Socket: path})
		status := host.Registered("Greeter", "hello")
		if status.Version != "1" || status.SocketPath != path || status.Endpoint != path {
			t.Errorf("registered as %+v", status)
		}
		if info, err := os.Lstat(path); err != nil || info.Mode() != os.ModeSocket|0o600 {
			t.Errorf("socket %v, %v", info.Mode(), err)
		}
		plugin.signal(signal)
		plugin.endsWith("<nil>")
		host.Deregistered("Greeter", "hello")
		if left := files(t, filepath.Dir(path)); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
}

func TestOfferedServices(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	start(t, role{Socket: path}).serves(path, "1")
	conn := connect(t, path)
	for _, service := range []string{"", v1beta1.Example_ServiceDesc.ServiceName} {
		health, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || health.Status != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", service, health, err)
		}
	}
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
	}); err != nil {
		t.Fatal(err)
	}
	list, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range list.GetListServicesResponse().GetService() {
		names = append(names, s.Name)
	}
	for _, want := range []string{v1beta1.Example_ServiceDesc.ServiceName, "pluginregistration.Registration", "grpc.health.v1.Health"} {
		if !slices.Contains(names, want) {
			t.Errorf("reflection lists %q, not %s", names, want)
		}
	}
	info, err := registerapi.NewRegistrationClient(conn).GetInfo(t.Context(), &registerapi.InfoRequest{})
	if err != nil || info.Type != "Greeter" || info.Name != "hello" || info.Endpoint != "" || !slices.Equal(info.SupportedVersions, []string{"1"}) {
		t.Errorf("info %v, %v", info, err)
	}
}

// TestDrain stops a plugin during a call: health says so, the socket goes, the call ends well, and who watches health does not hold it up.
func TestDrain(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	plugin := start(t, role{Socket: path, Drain: time.Hour})
	plugin.serves(path, "1")
	conn := connect(t, path)
	watch, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := watch.Recv(); err != nil || got.Status != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("health %v, %v", got, err)
	}
	call := make(chan error, 1)
	go func() {
		_, err := v1beta1.NewExampleClient(conn).GetExampleInfo(t.Context(), &v1beta1.ExampleRequest{Request: "wait", V1Beta1Field: dir})
		call <- err
	}()
	eventually(t, "the call has begun", func() bool { _, err := os.Stat(filepath.Join(dir, "begun")); return err == nil })

	plugin.signal(syscall.SIGTERM)
	if got, err := watch.Recv(); err != nil || got.Status != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health while it drains: %v, %v", got, err)
	}
	if _, err := watch.Recv(); err == nil {
		t.Error("the watch of health does not end")
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket while it drains: %v", err)
	}
	select {
	case err := <-call:
		t.Fatalf("the call ended before its time: %v", err)
	case <-plugin.ended:
		t.Fatal("the plugin ended before the call")
	default:
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-call; err != nil {
		t.Errorf("the call in progress: %v", err)
	}
	plugin.endsWith("<nil>")
}

func TestDrainHasADeadline(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	plugin := start(t, role{Socket: path, Drain: time.Millisecond})
	plugin.serves(path, "1")
	call := make(chan error, 1)
	conn := connect(t, path)
	go func() {
		_, err := v1beta1.NewExampleClient(conn).GetExampleInfo(t.Context(), &v1beta1.ExampleRequest{Request: "wait", V1Beta1Field: dir})
		call <- err
	}()
	eventually(t, "the call has begun", func() bool { _, err := os.Stat(filepath.Join(dir, "begun")); return err == nil })
	plugin.signal(syscall.SIGTERM)
	if err := <-call; err == nil {
		t.Error("the call was not cut off")
	}
	plugin.endsWith("<nil>")
	if !strings.Contains(plugin.said(), "aborted") {
		t.Errorf("the log does not tell:\n%s", plugin.said())
	}
}

// TestCrashes kills a plugin again and again: the next one replaces its socket, and nothing else is left.
func TestCrashes(t *testing.T) {
	host := sdktest.NewHost(t, "Greeter")
	path := host.Socket("hello.sock")
	for i := range 10 {
		version := fmt.Sprint(i)
		plugin := start(t, role{Socket: path, Version: version})
		plugin.serves(path, version)
		if i%3 == 0 {
			host.Registered("Greeter", "hello")
		}
		plugin.signal(syscall.SIGKILL)
		plugin.wait()
		if left := files(t, filepath.Dir(path)); !slices.Equal(left, []string{"hello.sock"}) {
			t.Fatalf("after a crash: %q", left)
		}
	}
	plugin := start(t, role{Socket: path, Version: "last"})
	eventually(t, "the last one is registered", func() bool { return host.Registered("Greeter", "hello").Version == "last" })
	plugin.signal(syscall.SIGTERM)
	plugin.endsWith("<nil>")
	if left := files(t, filepath.Dir(path)); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestTwoStarters has processes start at once over a stale socket: one serves, the others say who is there.
func TestTwoStarters(t *testing.T) {
	for range 5 {
		path := filepath.Join(tempDir(t), "s")
		stale(t, path)
		var plugins [3]*child
		for i := range plugins {
			plugins[i] = start(t, role{Socket: path})
		}
		var alive *child
		eventually(t, "all but one have ended", func() bool {
			n := 0
			for _, p := range plugins {
				select {
				case <-p.ended:
					n++
				default:
					alive = p
				}
			}
			return n == len(plugins)-1
		})
		alive.serves(path, "1")
		for _, p := range plugins {
			if p != alive {
				p.endsWith("cannot serve plugin Greeter/hello: another process is listening on " + path)
			}
		}
		alive.signal(syscall.SIGTERM)
		alive.endsWith("<nil>")
	}
}

// TestOthersAreLeftAlone has at the plugin's path what is not the plugin's.
func TestOthersAreLeftAlone(t *testing.T) {
	dir := tempDir(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other")
	otherPlugin := start(t, role{Socket: other, Type: "Greeter", Name: "other"})
	otherPlugin.serves(other, "1")
	mute := filepath.Join(dir, "mute")
	listener, err := net.Listen("unix", mute)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, takeOver := range []bool{false, true} {
		for path, want := range map[string]string{
			file:                            "not a socket",
			other:                           "another process is listening on " + other,
			mute:                            "another process is listening on " + mute,
			filepath.Join(dir, "none", "s"): "no such file or directory",
			filepath.Join(dir, strings.Repeat("x", 120)):     "choose a shorter one",
			filepath.Join(dir, "none", "none", "hello.sock"): "no such file or directory",
		} {
			plugin := start(t, role{Socket: path, TakeOver: takeOver})
			plugin.endsWith("cannot serve plugin Greeter/hello: ")
			if !strings.Contains(plugin.said(), want) {
				t.Errorf("take over %v of %s: want %q, got\n%s", takeOver, path, want, plugin.said())
			}
			if takeOver && path == other && !strings.Contains(plugin.said(), "it is another plugin, Greeter/other") {
				t.Errorf("take over of another plugin:\n%s", plugin.said())
			}
		}
	}
	otherPlugin.serves(other, "1")
	if got, err := os.ReadFile(file); err != nil || string(got) != "precious" {
		t.Errorf("the file: %q, %v", got, err)
	}
	if left := files(t, dir); !slices.Equal(left, []string{"file", "mute", "other"}) {
		t.Errorf("left behind: %q", left)
	}
}

// TestRemovesOnlyItsOwnSocket has another socket at the path when the plugin ends.
func TestRemovesOnlyItsOwnSocket(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	plugin := start(t, role{Socket: path})
	plugin.serves(path, "1")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	plugin.signal(syscall.SIGTERM)
	plugin.endsWith("<nil>")
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the other's socket: %v", err)
	}
}

// TestDirectoryIsGone ends a plugin whose directory was removed.
func TestDirectoryIsGone(t *testing.T) {
	dir := filepath.Join(tempDir(t), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	plugin := start(t, role{Socket: path})
	plugin.serves(path, "1")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	plugin.signal(syscall.SIGTERM)
	plugin.endsWith("<nil>")
	if strings.Contains(plugin.said(), "cannot clean up") {
		t.Error(plugin.said())
	}
}

// TestServeInProcess serves several plugins of one process, which end with their context.
func TestServeInProcess(t *testing.T) {
	dir := tempDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	serve := func(name, socket string, takeOver bool) error {
		return sdk.Serve(ctx, sdk.Plugin{
			Type: "Greeter", Name: name, Versions: []string{"1"}, Socket: filepath.Join(dir, socket), TakeOver: takeOver, Mode: 0o666,
			Register: func(s grpc.ServiceRegistrar) { v1beta1.RegisterExampleServer(s, example{version: name}) },
		})
	}
	var running sync.WaitGroup
	for _, name := range []string{"a", "b"} {
		running.Go(func() {
			if err := serve(name, name, false); err != nil {
				t.Error(err)
			}
		})
		path := filepath.Join(dir, name)
		eventually(t, name+" serves", func() bool { return who(t, path) == fmt.Sprintf("%s %d", name, os.Getpid()) })
		if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o666 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	}
	if err := serve("a", "a", false); !errors.Is(err, sdk.ErrInUse) {
		t.Errorf("twice: %v", err)
	}
	// A process that took over from itself would end itself.
	if err := serve("a", "a", true); !errors.Is(err, sdk.ErrInUse) || !strings.Contains(err.Error(), "this process") {
		t.Errorf("twice, to take over: %v", err)
	}
	cancel()
	running.Wait()
	if left := files(t, dir); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// stale leaves a socket on which nobody listens.
func stale(t testing.TB, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
