package dra_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/patchbay-dev/patchbay/handlers/dra"
)

const (
	good = drahealth.HealthStatus_HEALTHY
	bad  = drahealth.HealthStatus_UNHEALTHY
)

// statuses returns what is known of the devices, as DEVICE=STATUS.
func statuses(devices []dra.DeviceHealth) string {
	var texts []string
	for _, d := range devices {
		texts = append(texts, d.Device+"="+string(d.Status))
	}
	return strings.Join(texts, " ")
}

// has waits until the health of the driver's devices is as it should be.
func has(t *testing.T, h *dra.Handler, want string) {
	t.Helper()
	eventually(t, "the health is "+want, func() bool { return statuses(h.Health(driverName)) == want })
}

// says has the driver say something of its device until it is heard: a stream that is being closed may take a report with it.
func says(t *testing.T, h *dra.Handler, f *fake, health drahealth.HealthStatus, want string) {
	t.Helper()
	eventually(t, want, func() bool {
		f.report(t, of("gpu-0", health))
		return statuses(h.Health(driverName)) == want
	})
}

// TestHealthV1: a driver for Kubernetes 1.37 and later serves the health under another name; one that serves both is asked by the newer.
func TestHealthV1(t *testing.T) {
	h := newHandler(t, &dra.Handler{})
	f := newFake("a")
	s := serve(t, func(server grpc.ServiceRegistrar) {
		drav1.RegisterDRAPluginServer(server, f)
		v1 := drahealth.DRAResourceHealth_ServiceDesc
		v1.ServiceName = "v1.DRAResourceHealth"
		server.RegisterService(&v1, f)
	})
	versions := []string{"v1.DRAPlugin", "v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth"}
	got, err := h.RegisterPluginContext(t.Context(), driverName, s.socket, versions, nil)
	if err != nil || got.Details[dra.KeyHealth] != "v1.DRAResourceHealth" {
		t.Fatalf("registration %+v, %v", got, err)
	}
	f.report(t, of("gpu-0", bad))
	has(t, h, "gpu-0=unhealthy")
}

func TestHealth(t *testing.T) {
	h := newHandler(t, &dra.Handler{})
	f := newFake("a")
	s := serve(t, f.register)
	register(t, h, s, withHealth)
	if got := h.Health(driverName); got != nil {
		t.Errorf("before it said anything: %v", got)
	}
	hot := of("gpu-1", bad)
	hot.Message, hot.HealthCheckTimeoutSeconds = strings.Repeat("é", 1100), 7
	f.report(t, hot, of("gpu-0", good), of("gpu-2", 99))
	has(t, h, "gpu-0=healthy gpu-1=unhealthy gpu-2=unknown")
	devices := h.Health(driverName)
	if d := devices[1]; d.Pool != "node-1" || d.Timeout != 7*time.Second || d.Message != strings.Repeat("é", 1021)+"..." ||
		time.Since(d.LastReport) > patience {
		t.Errorf("gpu-1: %+v", d)
	}
	if d := devices[0]; d.Timeout != 30*time.Second {
		t.Errorf("gpu-0: %+v", d)
	}
	// What a report does not mention stays as it was.
	f.report(t, of("gpu-0", bad))
	has(t, h, "gpu-0=unhealthy gpu-1=unhealthy gpu-2=unknown")
	h.DeRegisterPlugin(driverName)
	has(t, h, "")
	eventually(t, "the stream is closed", func() bool { return f.streams.Load() == 0 })
}

// TestHealthIsResumed: after the end of a stream, and after a restart of the driver at the same endpoint, which it need not be registered
// again for. What was said before counts meanwhile.
func TestHealthIsResumed(t *testing.T) {
	h := newHandler(t, &dra.Handler{})
	f := newFake("a")
	s := serve(t, f.register)
	register(t, h, s, withHealth)
	says(t, h, f, good, "gpu-0=healthy")
	f.reports <- nil
	says(t, h, f, bad, "gpu-0=unhealthy")
	s.kill()
	s = serveAt(t, s.socket, f.register)
	has(t, h, "gpu-0=unhealthy")
	says(t, h, f, good, "gpu-0=healthy")
	register(t, h, s, withHealth)
	has(t, h, "gpu-0=healthy")
	says(t, h, f, bad, "gpu-0=unhealthy")
	eventually(t, "there is one stream", func() bool { return f.streams.Load() == 1 })
}

// TestHealthOfTheNewest: during a roll-over one instance says how the devices are.
func TestHealthOfTheNewest(t *testing.T) {
	h := newHandler(t, &dra.Handler{})
	older, newer := newFake("older"), newFake("newer")
	olderServer, newerServer := serve(t, older.register), serve(t, newer.register)
	register(t, h, olderServer, withHealth)
	older.report(t, of("gpu-0", good))
	has(t, h, "gpu-0=healthy")
	register(t, h, newerServer, withHealth)
	eventually(t, "the older instance's stream is closed", func() bool { return older.streams.Load() == 0 && newer.streams.Load() == 1 })
	has(t, h, "gpu-0=healthy")
	newer.report(t, of("gpu-0", bad))
	has(t, h, "gpu-0=unhealthy")
	h.InstanceGone(driverName, newerServer.socket)
	older.report(t, of("gpu-0", good))
	has(t, h, "gpu-0=healthy")
	h.InstanceGone(driverName, olderServer.socket)
	has(t, h, "")
}

// TestHostileHealth: what cannot be kept is passed over, and said once.
func TestHostileHealth(t *testing.T) {
	var log strings.Builder
	h := newHandler(t, &dra.Handler{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	f := newFake("a")
	register(t, h, serve(t, f.register), withHealth)
	for range 3 {
		f.report(t, nil, of("", good), of("\x1b[2J", good), of(strings.Repeat("x", 254), good), of("gpu-0", good))
		has(t, h, "gpu-0=healthy")
	}
	f.report(t, of("gpu-0", bad))
	has(t, h, "gpu-0=unhealthy")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "passed over"); n != 1 {
		t.Errorf("said %d times: %s", n, log.String())
	}
}
