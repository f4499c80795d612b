//go:build linux

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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/sdk/sdktest"
)

// TestTakeOver updates a registered plugin several times under 16 callers at its path: no call fails, and one that was on an old instance
// ends on it.
func TestTakeOver(t *testing.T) {
	host := sdktest.NewHost(t, "Greeter")
	path := host.Socket("hello.sock")
	old := start(t, role{Socket: path, Version: "0", Drain: time.Hour})
	host.Registered("Greeter", "hello")
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := v1beta1.NewExampleClient(conn)
	dispensed := v1beta1.NewExampleClient(host.Conn("Greeter", "hello"))
	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	var calls atomic.Int64
	for i := range 16 {
		caller := []v1beta1.ExampleClient{client, dispensed}[i%2]
		callers.Go(func() {
			for ctx.Err() == nil {
				if _, err := caller.GetExampleInfo(t.Context(), &v1beta1.ExampleRequest{}); err != nil {
					t.Errorf("a call failed: %v", err)
					return
				}
				calls.Add(1)
				time.Sleep(time.Millisecond) // the new one has to start beside them
			}
		})
	}
	for i := range 3 {
		dir := tempDir(t)
		slow := make(chan error, 1)
		go func() {
			answer, err := client.GetExampleInfo(t.Context(), &v1beta1.ExampleRequest{Request: "wait", V1Beta1Field: dir})
			if err == nil && answer.Error != fmt.Sprintf("%d %d", i, old.pid()) {
				err = fmt.Errorf("it was answered by %q", answer.Error)
			}
			slow <- err
		}()
		eventually(t, "the slow call has begun", func() bool { _, err := os.Stat(filepath.Join(dir, "begun")); return err == nil })
		version := fmt.Sprint(i + 1)
		next := start(t, role{Socket: path, Version: version, TakeOver: true, HandOver: time.Hour, Drain: time.Hour})
		next.await("took over from the older instance")
		eventually(t, "the new one is registered", func() bool { return host.Registered("Greeter", "hello").Version == version })
		eventually(t, "calls go to the new one", func() bool {
			answer, err := client.GetExampleInfo(t.Context(), &v1beta1.ExampleRequest{})
			return err == nil && answer.Error == fmt.Sprintf("%s %d", version, next.pid())
		})
		select {
		case <-old.ended:
			t.Fatalf("the old one ended before its call:\n%s", old.said())
		default:
		}
		if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := <-slow; err != nil {
			t.Errorf("the slow call: %v", err)
		}
		old.endsWith("<nil>")
		if left := files(t, filepath.Dir(path)); !slices.Equal(left, []string{"hello.sock"}) {
			t.Errorf("there is %q", left)
		}
		old = next
	}
	cancel()
	callers.Wait()
	if calls.Load() == 0 {
		t.Error("nobody called")
	}
}

// TestTakeOverIsRefused has the host refuse the new instance: the old one has its path back and serves on.
func TestTakeOverIsRefused(t *testing.T) {
	host := sdktest.NewHost(t, "Greeter")
	path := host.Socket("hello.sock")
	old := start(t, role{Socket: path})
	host.Registered("Greeter", "hello")
	host.Refuse(errors.New("not today"))
	next := start(t, role{Socket: path, Version: "2", TakeOver: true, HandOver: time.Hour})
	next.endsWith("cannot serve plugin Greeter/hello: the host refused it")
	old.serves(path, "1")
	if left := files(t, filepath.Dir(path)); !slices.Equal(left, []string{"hello.sock"}) {
		t.Errorf("there is %q", left)
	}
	host.Refuse(nil)
	if got := host.Registered("Greeter", "hello").Version; got != "1" {
		t.Errorf("registered is version %q, want the old one", got)
	}
	old.signal(syscall.SIGTERM)
	old.endsWith("<nil>")
}

// TestTakeOverWithoutAHost ends the old instance after a time.
func TestTakeOverWithoutAHost(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	old := start(t, role{Socket: path})
	old.serves(path, "1")
	next := start(t, role{Socket: path, Version: "2", TakeOver: true, HandOver: 50 * time.Millisecond})
	old.endsWith("<nil>")
	next.serves(path, "2")
	next.await("took over")
	eventually(t, "only the socket is left", func() bool { return slices.Equal(files(t, dir), []string{"s"}) })
}

// TestTakeOverIsStopped stops the new instance before it is registered, by a signal and by a crash.
func TestTakeOverIsStopped(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	old := start(t, role{Socket: path})
	old.serves(path, "1")

	next := start(t, role{Socket: path, Version: "2", TakeOver: true, HandOver: time.Hour})
	next.serves(path, "2")
	next.signal(syscall.SIGTERM)
	next.endsWith("<nil>")
	old.serves(path, "1")
	if left := files(t, dir); !slices.Equal(left, []string{"s"}) {
		t.Errorf("there is %q", left)
	}

	next = start(t, role{Socket: path, Version: "3", TakeOver: true, HandOver: time.Hour})
	next.serves(path, "3")
	next.signal(syscall.SIGKILL)
	next.wait()
	start(t, role{Socket: path, Version: "4"}).endsWith("cannot serve plugin Greeter/hello: another process is listening on")
	old.serves(path, "1")
	if left := files(t, dir); !slices.Equal(left, []string{"s"}) {
		t.Errorf("there is %q", left)
	}
	old.signal(syscall.SIGTERM)
	old.endsWith("<nil>")
}

// TestTakeOverOfATakeOver replaces an instance that has not ended its own predecessor yet.
func TestTakeOverOfATakeOver(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	var plugins [3]*child
	for i := range plugins {
		version := fmt.Sprint(i)
		handOver := time.Hour
		if i == len(plugins)-1 {
			handOver = time.Millisecond
		}
		plugins[i] = start(t, role{Socket: path, Version: version, TakeOver: true, HandOver: handOver})
		plugins[i].serves(path, version)
	}
	plugins[1].endsWith("<nil>")
	plugins[0].endsWith("<nil>")
	plugins[2].serves(path, "2")
	eventually(t, "only the socket is left", func() bool { return slices.Equal(files(t, dir), []string{"s"}) })
}

// TestTakeOversAtOnce starts several instances at once that may take over: one is left in the end, and it serves.
func TestTakeOversAtOnce(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "s")
	var plugins [4]*child
	for i := range plugins {
		plugins[i] = start(t, role{Socket: path, TakeOver: true, HandOver: time.Millisecond})
	}
	var alive *child
	eventually(t, "one is left", func() bool {
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
			p.endsWith("<nil>")
		}
	}
	eventually(t, "only the socket is left", func() bool { return slices.Equal(files(t, dir), []string{"s"}) })
}

// liar is a registration service that says it is in another process, or does not say.
type liar struct {
	registerapi.UnimplementedRegistrationServer
}

func (liar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: "Greeter", Name: "hello", SupportedVersions: []string{"1"}}, nil
}

// TestTakeOverNeedsToKnowTheProcess refuses to take over from a plugin that is not certain to be the process behind the socket.
func TestTakeOverNeedsToKnowTheProcess(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, liar{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() { server.Stop(); <-served }()
	plugin := start(t, role{Socket: path, TakeOver: true})
	plugin.endsWith("cannot serve plugin Greeter/hello: another process is listening on " + path)
	if !strings.Contains(plugin.said(), "not certain who serves it") {
		t.Error(plugin.said())
	}
}

// TestTakeOverOfAStoppedPlugin gives up on an instance that does not answer, in time.
func TestTakeOverOfAStoppedPlugin(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	old := start(t, role{Socket: path})
	old.serves(path, "1")
	old.signal(syscall.SIGSTOP)
	plugin := start(t, role{Socket: path, TakeOver: true})
	plugin.endsWith("cannot serve plugin Greeter/hello: another process is listening on " + path)
	if !strings.Contains(plugin.said(), "does not say which plugin it is; stop it first") {
		t.Error(plugin.said())
	}
	old.signal(syscall.SIGCONT)
	old.serves(path, "1")
}
