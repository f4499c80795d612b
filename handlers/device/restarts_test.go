package device_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/fsnotify/fsnotify"

	"github.com/patchbay-dev/patchbay/handlers/device"
)

// TestPluginThatRestartsForKubeletSock: plugins take a new kubelet.sock for a restart of their host, and register again or even restart. So it
// is made once for each start of the host, and nothing that such a plugin does makes it again.
func TestPluginThatRestartsForKubeletSock(t *testing.T) {
	dir := tempDir(t)
	sockets := filepath.Join(dir, "sockets")
	if err := os.MkdirAll(sockets, 0o700); err != nil {
		t.Fatal(err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	if err := watcher.Add(sockets); err != nil {
		t.Fatal(err)
	}
	// created returns whether kubelet.sock was created before a file of the test, which the caller has made.
	created := func(until string) (times int) {
		t.Helper()
		for {
			select {
			case e := <-watcher.Events:
				if e.Has(fsnotify.Create) && filepath.Base(e.Name) == "kubelet.sock" {
					times++
				}
				if e.Has(fsnotify.Create) && filepath.Base(e.Name) == until {
					return times
				}
			case err := <-watcher.Errors:
				t.Fatal(err)
			}
		}
	}
	mark := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(sockets, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	store := newMemory()
	stopPlugin := func() {}
	for _, start := range []string{"first", "second"} {
		r := startHost(t, dir, store, nil)
		for _, restart := range []string{"1", "2"} { // the plugin restarts, here even twice for one event
			stopPlugin()
			endpoint := filepath.Join(sockets, start+restart+".sock")
			stopPlugin = serveAt(t, endpoint, newFake("a").register)
			if err := registerOlder(t, dir, older(resource, filepath.Base(endpoint))); err != nil {
				t.Fatal(err)
			}
			r.untilRegistered(1)
			r.has("a:healthy")
		}
		mark(start)
		if n := created(start); n != 1 {
			t.Errorf("kubelet.sock was created %d times by the %s start of the host and the restarts of a plugin, want once", n, start)
		}
		r.stop()
	}
	if _, err := os.Lstat(filepath.Join(sockets, "kubelet.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("kubelet.sock after the end of the host: %v", err)
	}
}

// TestEndOfOneThatWasNeverRegistered: a plugin ends that a newer one superseded before it was registered. Nobody watches it, and its announcement
// is taken down all the same.
func TestEndOfOneThatWasNeverRegistered(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	h := &device.Handler{SocketDir: filepath.Join(dir, "sockets"), PluginDir: filepath.Join(dir, "plugins")}
	if err := h.Open(); err != nil {
		t.Fatal(err)
	}
	announced := func() int {
		sockets, _ := filepath.Glob(filepath.Join(dir, "plugins", "patchbay-device-plugins", "*.sock"))
		return len(sockets)
	}
	var registering sync.WaitGroup
	t.Cleanup(registering.Wait)
	t.Cleanup(func() { _ = h.Close() })
	var stopOlder func()
	for i, name := range []string{"older", "newer"} {
		stop := serveAt(t, filepath.Join(dir, "sockets", name), newFake("a").register)
		if i == 0 {
			stopOlder = stop
		}
		registering.Go(func() { _ = registerOlder(t, dir, older(resource, name)) }) // nobody finds it, so it is not answered
		until(t, h, fmt.Sprint(i+1, " are announced"), func() bool { return announced() == i+1 }, func() string { return fmt.Sprint(announced()) })
	}
	stopOlder()
	if err := h.RegisterPlugin(resource, filepath.Join(dir, "sockets", "newer"), []string{"v1beta1"}, nil); err != nil {
		t.Fatal(err)
	}
	until(t, h, "one is announced", func() bool { return announced() == 1 }, func() string { return fmt.Sprint(announced()) })
}
