//go:build unix

package sdk_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/sdk/sdktest"
)

// inherit listens as systemd does, and returns what a child inherits.
func inherit(t *testing.T, path string) *os.File {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func with(fds ...*os.File) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) { cmd.ExtraFiles = fds }
}

func TestSocketActivation(t *testing.T) {
	host := sdktest.NewHost(t, "Greeter")
	path := host.Socket("hello.sock")
	socket := inherit(t, path)
	for range 2 {
		// A configured path has no meaning here.
		plugin := start(t, role{Activated: []string{"unknown"}, Socket: "/nowhere/s"}, with(socket))
		plugin.serves(path, "1")
		host.Registered("Greeter", "hello")
		if peer, err := sock.Probe(t.Context(), path); err != nil || runtime.GOOS == "linux" && peer.PID != plugin.pid() {
			t.Errorf("the listener is %+v, %v; want the plugin, pid %d, and not who made the socket", peer, err, plugin.pid())
		}
		plugin.signal(syscall.SIGTERM)
		plugin.endsWith("<nil>")
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("systemd's socket: %v", err)
		}
		if !strings.Contains(plugin.said(), "environment:\n") {
			t.Errorf("the environment is left to descendants:\n%s", plugin.said())
		}
	}
	// The socket is systemd's, and stays where it is.
	plugin := start(t, role{Activated: []string{"unknown"}}, with(socket))
	plugin.serves(path, "1")
	other := start(t, role{Socket: path, TakeOver: true})
	other.endsWith("cannot serve plugin Greeter/hello: another process is listening on " + path)
	plugin.serves(path, "1")
}

func TestSocketActivationByName(t *testing.T) {
	dir := tempDir(t)
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	fds := with(inherit(t, first), inherit(t, second))
	start(t, role{Activated: []string{"other", "hello"}}, fds).serves(second, "1")

	plugin := start(t, role{Activated: []string{"other", "another"}}, fds)
	plugin.endsWith("cannot serve plugin Greeter/hello: systemd passed 2 sockets")
	if !strings.Contains(plugin.said(), `set FileDescriptorName= to the plugin's name`) {
		t.Error(plugin.said())
	}
}

func TestSocketActivationOfSomethingElse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	start(t, role{Activated: []string{""}}, with(f)).endsWith("cannot serve plugin Greeter/hello: systemd passed a socket of tcp")
}
