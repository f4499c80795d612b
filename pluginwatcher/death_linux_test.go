package pluginwatcher_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// inherit hands all listening Unix sockets of this process to a child.
func inherit(child *exec.Cmd) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	for _, entry := range entries {
		var fd int
		if _, err := fmt.Sscan(entry.Name(), &fd); err != nil {
			continue
		}
		if listening, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN); err == nil && listening == 1 {
			dup, err := syscall.Dup(fd)
			if err != nil {
				panic(err)
			}
			child.ExtraFiles = append(child.ExtraFiles, os.NewFile(uintptr(dup), "listener"))
		}
	}
}

// A plugin is gone when nobody accepts on its socket, and not when its process ends.
func TestListeningSocketOutlivesProcess(t *testing.T) {
	dir := t.TempDir()
	w := pluginwatcher.NewWatcher(dir, "")
	h := newCalls()
	w.AddHandler("T", h)
	start(t, w)
	path := filepath.Join(dir, "foo.sock")
	p := exec.CommandContext(t.Context(), os.Args[0])
	p.Env = append(os.Environ(), pluginSocket+"="+path)
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Fscan(out, &child); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(child, syscall.SIGKILL) }()
	h.await(t, "validate foo false", "register foo foo.sock")
	awaitState(t, w, path, plugin.StateRegistered)

	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait()
	// The child holds the listening socket: connects succeed, and only the kernel knows that nobody will ever serve them.
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the child does not hold the socket: %v", err)
	}
	_ = conn.Close()
	awaitState(t, w, path, plugin.StateRegistered)
	h.await(t)

	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.await(t, "deregister foo")
	awaitState(t, w, path, plugin.StateUnreachable)
}

// A plugin that stops to serve is gone although its process lives and its socket is still there.
func TestStopsToServe(t *testing.T) {
	dir := t.TempDir()
	w := pluginwatcher.NewWatcher(dir, "")
	h := newCalls()
	w.AddHandler("T", h)
	start(t, w)
	path := filepath.Join(dir, "foo.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	server := grpc.NewServer()
	p := pluginwatcher.NewTestExamplePlugin("foo", "T", path, "v1beta1")
	registerapi.RegisterRegistrationServer(server, p)
	go func() { _ = server.Serve(listener) }()
	h.await(t, "validate foo false", "register foo foo.sock")
	awaitState(t, w, path, plugin.StateRegistered)

	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.GracefulStop()
	}()
	h.await(t, "deregister foo")
	awaitState(t, w, path, plugin.StateUnreachable)
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Error("the watcher's connection keeps the plugin from stopping")
	}
}

// awaitState waits until the plugin on a socket is in a state.
func awaitState(t *testing.T, w *pluginwatcher.Watcher, path string, state plugin.State) {
	t.Helper()
	for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Millisecond) {
		plugins, _ := w.Plugins()
		for _, s := range plugins {
			if s.SocketPath == path && s.State == state {
				return
			}
		}
	}
	plugins, _ := w.Plugins()
	t.Fatalf("%s is not %s: %s", path, state, strings.TrimSpace(fmt.Sprintf("%+v", plugins)))
}
