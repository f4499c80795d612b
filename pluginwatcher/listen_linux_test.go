package pluginwatcher_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/internal/reconciler"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/pluginwatcher"
)

// A socket exists a moment before its plugin listens on it. That moment is no failure.
func TestSocketBeforeListen(t *testing.T) {
	for range 20 {
		dir := t.TempDir()
		failures := make(chan plugin.Event, 100)
		w := pluginwatcher.With(&pipeline.Watcher{Dirs: []string{dir}, Registration: reconciler.Config{
			Observe: func(e plugin.Event) {
				if e.Kind != plugin.EventRegistered {
					failures <- e
				}
			},
		}})
		h := newCalls()
		w.AddHandler("T", h)
		start(t, w)

		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "foo.sock")
		bound := time.Now()
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			t.Fatal(err)
		}
		// Until the watcher has been refused at least once.
		for {
			if plugins, _ := w.Plugins(); len(plugins) > 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(5 * time.Millisecond)
		if err := unix.Listen(fd, 8); err != nil {
			t.Fatal(err)
		}
		// A machine that is too busy makes more than a moment of it, and then a failure is right.
		tooLong := time.Since(bound) > 90*time.Millisecond
		server := grpc.NewServer()
		p := pluginwatcher.NewTestExamplePlugin("foo", "T", path, "v1beta1")
		registerapi.RegisterRegistrationServer(server, p)
		go func() { _ = server.Serve(fileListener(t, fd)) }()
		h.await(t, "validate foo false", "register foo foo.sock")
		awaitStatus(t, p)
		stop(t, w)
		server.Stop()
		close(failures)
		for e := range failures {
			if e.Kind == plugin.EventFailed && !tooLong || e.Kind == plugin.EventRefused {
				t.Errorf("event %+v", e)
			}
		}
	}
}

func fileListener(t *testing.T, fd int) net.Listener {
	file := os.NewFile(uintptr(fd), "listener")
	defer file.Close()
	listener, err := net.FileListener(file)
	if err != nil {
		t.Error(err)
	}
	return listener
}
