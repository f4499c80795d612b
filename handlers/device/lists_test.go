package device_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/device"
)

// A plugin that sends no list is registered, without devices, and those show when it does.
func TestFirstListIsLate(t *testing.T) {
	f := newFake("a")
	late := make(chan struct{})
	f.list = func(stream pluginapi.DevicePlugin_ListAndWatchServer) error {
		<-late
		return newFake("a").ListAndWatch(nil, stream)
	}
	r := newRig(t, f, &device.Handler{ListTimeout: time.Millisecond})
	r.refuses(device.ErrUnavailable, "one", 1)
	close(late)
	eventually(t, r.Handler, "a:healthy")
}

// Why there still is no list after a plugin was registered without one is said once for each reason, and not for each attempt.
func TestFirstListIsLateAndWrong(t *testing.T) {
	f := newFake()
	late, attempts := make(chan struct{}), make(chan int, 1)
	attempts <- 0
	f.list = func(stream pluginapi.DevicePlugin_ListAndWatchServer) error {
		<-late
		n := <-attempts + 1
		attempts <- n
		if n > 6 {
			return newFake("a").ListAndWatch(nil, stream)
		}
		return stream.Send(&pluginapi.ListAndWatchResponse{Devices: []*pluginapi.Device{{ID: strings.Repeat("\x00", n/4)}}})
	}
	var log bytes.Buffer
	h := newHandler(t, &device.Handler{ListTimeout: time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	socket := filepath.Join(tempDir(t), "plugin.sock")
	serveAt(t, socket, f.register)
	if err := h.RegisterPlugin(resource, socket, []string{"v1beta1"}, nil); err != nil {
		t.Fatal(err)
	}
	close(late)
	eventually(t, h, "a:healthy")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "is not up to date"); n != 2 {
		t.Errorf("the lack of a list is said %d times, want 2:\n%s", n, &log)
	}
}

// A plugin that never stops sending lists is slowed down, and the last list is seen.
func TestEndlessLists(t *testing.T) {
	f := newFake()
	sent := 0
	f.list = func(stream pluginapi.DevicePlugin_ListAndWatchServer) error {
		for {
			list := &pluginapi.ListAndWatchResponse{}
			for i := range 1000 {
				id := fmt.Sprintf("%d-%d-%s", sent, i, strings.Repeat("x", 100))
				list.Devices = append(list.Devices, &pluginapi.Device{ID: id, Health: "Healthy"})
			}
			if err := stream.Send(list); err != nil {
				return err
			}
			sent++
		}
	}
	began := time.Now()
	r := newRig(t, f, &device.Handler{})
	taken := func() (n int) {
		if devices := devicesOf(r.Handler); len(devices) > 0 {
			_, _ = fmt.Sscanf(devices[0].ID, "%d-", &n) // 0 if it is malformed
		}
		return n
	}
	until(t, r.Handler, "some lists are taken", func() bool { return taken() > 70 }, func() string { return fmt.Sprint(taken()) })
	// 50 may come at once, and 50 more each second.
	if n := taken(); n > 51+int(time.Since(began)/(20*time.Millisecond)) {
		t.Errorf("list number %d is taken after %v", n, time.Since(began))
	}
	if n := len(devicesOf(r.Handler)); n != 1000 {
		t.Errorf("%d devices are known, want those of one list", n)
	}
}

// All resources together have no more devices than allowed: a list beyond that is refused, and what a plugin left that nobody has makes room.
func TestTotalOfDevices(t *testing.T) {
	first := newFake("a", "b")
	r := newRig(t, first, &device.Handler{MaxTotalDevices: 3})
	register := func(name string, ids ...string) error {
		socket := filepath.Join(tempDir(t), "plugin.sock")
		serveAt(t, socket, newFake(ids...).register)
		return r.RegisterPlugin("example.com/"+name, socket, []string{"v1beta1"}, nil)
	}
	if err := register("two", "c", "d"); err == nil || errors.Is(err, cache.ErrRetry) || !strings.Contains(err.Error(), "more than 3 in total") {
		t.Errorf("got %v, want that it is refused", err)
	}
	r.must(register("one", "c"))
	eventually(t, r.Handler, "a:healthy b:healthy c:healthy")
	first.set("d", "Healthy")
	eventually(t, r.Handler, "a:unavailable b:unavailable c:healthy")
	r.DeRegisterPlugin("example.com/one")
	eventually(t, r.Handler, "a:healthy b:healthy d:healthy")
	r.give("somebody", 1)
	r.DeRegisterPlugin(resource)
	if err := register("two", "c", "d"); err == nil {
		t.Error("devices that somebody has made room")
	}
}

// Nothing is forgotten for a list that is refused all the same.
func TestTotalForgetsNothingInVain(t *testing.T) {
	r := newRig(t, newFake("a"), &device.Handler{MaxTotalDevices: 3})
	r.DeRegisterPlugin(resource)
	socket := filepath.Join(tempDir(t), "plugin.sock")
	serveAt(t, socket, newFake("b", "c", "d", "e").register)
	if err := r.RegisterPlugin("example.com/many", socket, []string{"v1beta1"}, nil); err == nil {
		t.Error("more devices than allowed are taken")
	}
	eventually(t, r.Handler, "a:unavailable")
}
