package dra

import (
	"context"
	"fmt"
	"slices"
	"strings"
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

// TestUnknownAfterTimeout checks when devices become unknown, and that those that were reported again do not.
func TestUnknownAfterTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(Handler)
		take := func(reports ...*drahealth.DeviceHealth) {
			t.Helper()
			if err := h.takeHealth(context.Background(), "d", reports); err != nil {
				t.Fatal(err)
			}
		}
		start := time.Now()
		take(report("short", 5), report("default", -1), report("huge", 1<<62))
		var got []string
		for range 40 {
			var text string
			for _, d := range h.Health("d") {
				text += fmt.Sprintf(" %s=%s%q", d.Device, d.Status, d.Message)
			}
			if n := len(got); n == 0 || !strings.HasSuffix(got[n-1], text) {
				got = append(got, time.Since(start).String()+text)
			}
			time.Sleep(time.Second)
			if time.Since(start) == 4*time.Second {
				take(report("short", 5))
			}
		}
		want := []string{
			`0s default=healthy"fine" huge=healthy"fine" short=healthy"fine"`,
			`9s default=healthy"fine" huge=healthy"fine" short=unknown""`,
			`30s default=unknown"" huge=healthy"fine" short=unknown""`,
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// TestHealthIsBounded: a driver that makes up devices is cut off, and devices that are gone make room.
func TestHealthIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(Handler)
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
