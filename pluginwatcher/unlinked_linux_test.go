package pluginwatcher_test

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// robbed is a plugin in this process, which lives on.
type robbed struct {
	net.Listener
	path string

	mu    sync.Mutex
	conns []net.Conn
}

func serveRobbed(t *testing.T, name, path string) *robbed {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	try(t, err)
	l.SetUnlinkOnClose(false)
	r := &robbed{Listener: l, path: path}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, pluginwatcher.NewTestExamplePlugin(name, "T", path, "v1beta1"))
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(r)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	return r
}

func (r *robbed) Accept() (net.Conn, error) {
	conn, err := r.Listener.Accept()
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.conns = append(r.conns, conn)
	}
	return conn, err
}

// hangUp closes all connections, as a plugin may at any time.
func (r *robbed) hangUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range r.conns {
		_ = conn.Close()
	}
}

// TestUnlinkedIsTrue: a plugin that is listed without its socket still listens, whatever happens to its connections, and one that listens no
// more is not listed, though its process lives.
func TestUnlinkedIsTrue(t *testing.T) {
	var mu sync.Mutex
	told := map[string]int{}
	dir := t.TempDir()
	w := pluginwatcher.With(&pipeline.Watcher{Dirs: []string{dir}, Registration: reconciler.Config{Observe: func(e plugin.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Kind == plugin.EventUnlinked {
			told[e.Name]++
		}
	}}})
	w.AddHandler("T", newCalls())
	start(t, w)
	plugins := map[string]*robbed{}
	for _, name := range []string{"stops at once", "stops silently", "hangs up", "stops later", "stops silently later"} {
		plugins[name] = serveRobbed(t, name, filepath.Join(dir, name+".sock"))
		awaitState(t, w, plugins[name].path, plugin.StateRegistered)
	}
	for _, p := range plugins {
		try(t, os.Remove(p.path))
	}
	stop := func(name string) { try(t, plugins[name].Close()) }
	stop("stops at once")
	plugins["stops at once"].hangUp()
	stop("stops silently") // and keeps its connections
	plugins["hangs up"].hangUp()
	awaitUnlinked(t, w, "hangs up", "stops later", "stops silently later")
	stop("stops later")
	plugins["stops later"].hangUp()
	stop("stops silently later")
	awaitUnlinked(t, w, "hangs up")
	mu.Lock()
	defer mu.Unlock()
	if told["hangs up"] != 1 || told["stops later"] != 1 || told["stops silently later"] != 1 || len(told) != 3 {
		t.Errorf("told that they serve without their sockets: %v", told)
	}
}

// awaitUnlinked waits until what is listed are these plugins, without their sockets.
func awaitUnlinked(t *testing.T, w *pluginwatcher.Watcher, want ...string) {
	t.Helper()
	var got []string
	for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Millisecond) {
		got = nil
		plugins, _ := w.Plugins()
		for _, p := range plugins {
			got = append(got, p.Name)
			if p.State != plugin.StateUnlinked {
				got = append(got, string(p.State))
			}
		}
		if slices.Equal(got, want) {
			return
		}
	}
	t.Fatalf("unlinked are %q, want %q", got, want)
}
