//go:build unix

package sdk_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/launch/handshake"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// fakeHost takes the log of launched processes.
type fakeHost struct {
	pluginv1.UnimplementedHostServer
	path string
	stop func()

	mu       sync.Mutex
	tickets  []string
	messages []string
	attrs    map[string]string
}

func newFakeHost(t *testing.T) *fakeHost {
	h := &fakeHost{path: filepath.Join(tempDir(t), "host.sock"), attrs: map[string]string{}}
	listener, err := net.Listen("unix", h.path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginv1.RegisterHostServer(server, h)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	h.stop = sync.OnceFunc(func() { server.Stop(); <-served })
	t.Cleanup(h.stop)
	return h
}

func (h *fakeHost) Log(stream grpc.ClientStreamingServer[pluginv1.LogRequest, pluginv1.LogResponse]) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return stream.SendAndClose(&pluginv1.LogResponse{})
		}
		h.mu.Lock()
		h.tickets = metadata.ValueFromIncomingContext(stream.Context(), handshake.TicketKey)
		for _, r := range request.Records {
			h.messages = append(h.messages, r.Message)
			for _, a := range r.Attributes {
				h.attrs[a.Key] = a.GetText()
			}
		}
		h.mu.Unlock()
	}
}

func (h *fakeHost) logged(message string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Contains(h.messages, message)
}

// launch starts the plugin with a handshake.
func (h *fakeHost) launch(t *testing.T, r role, pluginSocket string) *child {
	t.Helper()
	c := start(t, r, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, handshake.Env+"="+handshake.EnvValue) })
	shake := handshake.Handshake{HostSocket: h.path, Ticket: "secret", PluginSocket: pluginSocket}
	if err := handshake.Write(c.stdin, shake); err != nil {
		t.Fatal(err)
	}
	return c
}

// end closes the standard input of the child.
func (c *child) end() { _ = c.stdin.Close() }

func TestLaunched(t *testing.T) {
	host := newFakeHost(t)
	path := filepath.Join(tempDir(t), "given.sock")
	plugin := host.launch(t, role{Socket: "/nowhere/s"}, path)
	plugin.serves(path, "1")
	plugin.end()
	plugin.endsWith("<nil>")
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is left")
	}
}

// TestMadeListener: on a socket that its host has made a plugin says who it is before it serves, and heeds signals soon after.
func TestMadeListener(t *testing.T) {
	host := newFakeHost(t)
	for wait := 100 * time.Millisecond; ; wait *= 2 { // that at which it heeds them
		path := filepath.Join(tempDir(t), "given.sock")
		made, err := sock.Make(path)
		if err == nil {
			err = made.Bind()
		}
		if err != nil {
			t.Fatal(err)
		}
		introduction, pen, err := handshake.NewIntroduction()
		if err != nil {
			t.Fatal(err)
		}
		shake := handshake.Handshake{
			HostSocket: host.path, Ticket: "secret", PluginSocket: path, Listener: &handshake.Listener{FD: 3, Path: made.Path},
		}
		plugin := start(t, role{ServeOnly: true}, func(cmd *exec.Cmd) {
			cmd.Env = append(cmd.Env, handshake.Env+"="+handshake.EnvValue)
			if cmd.ExtraFiles = []*os.File{made.File}; pen != nil {
				cmd.ExtraFiles, shake.Listener.Introduction = append(cmd.ExtraFiles, pen), 4
			}
		})
		_ = made.File.Close()
		if pen != nil {
			_ = pen.Close()
		}
		if err := handshake.Write(plugin.stdin, shake); err != nil {
			t.Fatal(err)
		}
		plugin.serves(path, "1")
		var info registerapi.PluginInfo
		if err := proto.Unmarshal(introduction.Take(), &info); err != nil || pen != nil && info.Name != "hello" {
			t.Errorf("it has said that it is %v, %v", &info, err)
		}
		time.Sleep(wait)
		plugin.signal(syscall.SIGTERM)
		plugin.wait()
		if strings.Contains(plugin.said(), "end <nil>") {
			return
		}
		if wait > patience {
			t.Fatalf("after %v a signal ends it, not Serve:\n%s", wait, plugin.said())
		}
	}
}

func TestLaunchedPluginIsStoppedBySignal(t *testing.T) {
	host := newFakeHost(t)
	path := filepath.Join(tempDir(t), "given.sock")
	plugin := host.launch(t, role{}, path)
	plugin.serves(path, "1")
	plugin.signal(syscall.SIGTERM)
	plugin.endsWith("<nil>")
}

// TestLaunchedLog sees that records reach the host, the last one too, and that the handshake is not left in the environment.
func TestLaunchedLog(t *testing.T) {
	host := newFakeHost(t)
	plugin := host.launch(t, role{RunOnly: true}, "")
	eventually(t, "the host has the log", func() bool { return host.logged("running") })
	plugin.end()
	plugin.endsWith("<nil>")
	if !host.logged("last words") {
		t.Error("the last record did not reach the host")
	}
	host.mu.Lock()
	defer host.mu.Unlock()
	if value, ok := host.attrs["handshake"]; !ok || value != "" {
		t.Errorf("the environment has the handshake: %q", value)
	}
	if host.attrs["bad"] != "\uFFFD" {
		t.Errorf("invalid UTF-8 became %q", host.attrs["bad"])
	}
	if !slices.Equal(host.tickets, []string{"secret"}) {
		t.Errorf("tickets %q", host.tickets)
	}
	if strings.Contains(plugin.said(), "running") {
		t.Errorf("the log is on standard error too:\n%s", plugin.said())
	}
}

// TestHostIsGone has the log go to standard error, whether the host goes before its socket is used or after.
func TestHostIsGone(t *testing.T) {
	host := newFakeHost(t)
	plugin := host.launch(t, role{RunOnly: true}, "")
	eventually(t, "the host has the log", func() bool { return host.logged("running") })
	host.stop()
	plugin.end()
	plugin.endsWith("<nil>")
	if !strings.Contains(plugin.said(), `"msg":"last words"`) {
		t.Errorf("the last record is not on standard error:\n%s", plugin.said())
	}

	plugin = host.launch(t, role{RunOnly: true}, "")
	plugin.await(`"msg":"running"`)
	plugin.signal(syscall.SIGTERM)
	plugin.endsWith("<nil>")
	if !strings.Contains(plugin.said(), `"msg":"last words"`) {
		t.Errorf("the last record is not on standard error:\n%s", plugin.said())
	}
}

func TestLaunchedToServeNothing(t *testing.T) {
	newFakeHost(t).launch(t, role{Socket: "/nowhere/s"}, "").endsWith("cannot serve plugin Greeter/hello: the host that launched it named no socket")
}

func TestHandshakeIsBroken(t *testing.T) {
	c := start(t, role{}, func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, handshake.Env+"="+handshake.EnvValue) })
	if _, err := c.stdin.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	c.endsWith("cannot read the host's handshake: the line on standard input is not a handshake")
}

// TestStandardInputIsLeftAlone starts a plugin without a handshake; the end of its standard input means nothing to it.
func TestStandardInputIsLeftAlone(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	plugin := start(t, role{Socket: path})
	plugin.end()
	plugin.serves(path, "1")
	plugin.signal(syscall.SIGTERM)
	plugin.endsWith("<nil>")
}
