package dra

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
)

func report(device string, timeout int64) *drahealth.DeviceHealth {
	return &drahealth.DeviceHealth{
		Device: &drahealth.DeviceIdentifier{PoolName: "p", DeviceName: device}, Health: drahealth.HealthStatus_HEALTHY,
		Message: "fine", HealthCheckTimeoutSeconds: timeout,
	}
}

// TestUnknownAfterTimeout: a watcher is told at the moment when a device becomes unknown, and what was reported again is not.
func TestUnknownAfterTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Config{})
		start := time.Now()
		if err := h.takeHealth(context.Background(), "d", []*drahealth.DeviceHealth{report("short", 5), report("default", -1), report("huge", 1<<62)}); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(4*time.Second, func() { _ = h.takeHealth(context.Background(), "d", []*drahealth.DeviceHealth{report("short", 5)}) })
		time.AfterFunc(40*time.Second, func() { _ = h.Close() })
		var got []string
		for devices := range h.WatchHealth(t.Context(), "d") {
			text := time.Since(start).String()
			for _, d := range devices {
				text += fmt.Sprintf(" %s=%s%q", d.Device, d.Status, d.Message)
			}
			got = append(got, text)
		}
		want := []string{
			`0s default=healthy"fine" huge=healthy"fine" short=healthy"fine"`,
			`9s default=healthy"fine" huge=healthy"fine" short=unknown""`,
			`30s default=unknown"" huge=healthy"fine" short=unknown""`,
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestHealthIsBounded: a driver that makes up devices is cut off, and devices that are gone make room.
func TestHealthIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Config{})
		many := make([]*drahealth.DeviceHealth, maxHealthDevices+10)
		for round := range 3 {
			for i := range many {
				many[i] = report(fmt.Sprintf("%d-%d", round, i), 0)
			}
			if err := h.takeHealth(context.Background(), "d", many); err == nil {
				t.Error("no error")
			}
			if n := len(h.Health("d")); n != maxHealthDevices {
				t.Errorf("%d devices", n)
			}
			if err := h.takeHealth(context.Background(), "d", many[:1]); err != nil {
				t.Errorf("a device that is known: %v", err)
			}
			time.Sleep(defaultHealthTimeout)
		}
	})
}

// TestLocksAreForgotten: claims come and go.
func TestLocksAreForgotten(t *testing.T) {
	var l claimLocks
	for i := range 10 {
		locked, err := l.lock(t.Context(), "d", []string{fmt.Sprint(i), "x"})
		if err != nil {
			t.Fatal(err)
		}
		locked.release()
	}
	if len(l.held) != 0 {
		t.Errorf("%d locks are left", len(l.held))
	}
}
