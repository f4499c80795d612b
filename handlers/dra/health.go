package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
	"github.com/patchbay-dev/patchbay/internal/backoff"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// HealthStatus is the health of a device.
type HealthStatus string

// The values of HealthStatus. A device is also unknown if its driver has not reported it for longer than the device's timeout.
const (
	Healthy   HealthStatus = "healthy"
	Unhealthy HealthStatus = "unhealthy"
	Unknown   HealthStatus = "unknown"
)

// DeviceHealth is the last reported health of a device.
type DeviceHealth struct {
	// Pool and Device name the device among those of its driver.
	Pool, Device string
	Status       HealthStatus
	// Message is the driver's explanation, at most 1,024 characters; often empty. It may hold any characters.
	Message string
	// LastReport is when the last report arrived, by the clock of this machine.
	LastReport time.Time
	// Timeout is how long the report is valid: 30 s unless the driver sets another time.
	Timeout time.Duration
}

// end returns when the report expires.
func (d DeviceHealth) end() time.Time { return d.LastReport.Add(d.Timeout) }

const (
	defaultHealthTimeout = 30 * time.Second
	maxHealthTimeout     = 365 * 24 * time.Hour
	maxHealthMessage     = 1024
	// maxHealthDevices bounds the devices of one driver whose health is kept.
	maxHealthDevices = 8192
)

// Health returns the last reported health of a driver's devices, ordered by pool and device. It is empty if the driver is not registered,
// offers no health service or has reported nothing yet.
func (h *Handler) Health(driver string) []DeviceHealth {
	now := time.Now()
	h.lock()
	devices := slices.Collect(maps.Values(h.health[driver]))
	h.mu.Unlock()
	for i, device := range devices {
		if device.Status != Unknown && !now.Before(device.end()) {
			devices[i].Status, devices[i].Message = Unknown, ""
		}
	}
	slices.SortFunc(devices, func(a, b DeviceHealth) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Device, b.Device))
	})
	return devices
}

type deviceKey struct{ pool, device string }

// takeHealth stores a report of a driver, unless ctx, that of its stream, has ended. Devices that the report does not mention keep their
// state until their timeout. The error is the first reason for which a device was ignored.
func (h *Handler) takeHealth(ctx context.Context, driver string, reported []*drahealth.DeviceHealth) error {
	now := time.Now()
	h.lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return nil
	}
	devices := h.health[driver]
	if devices == nil {
		devices = map[deviceKey]DeviceHealth{}
		h.health[driver] = devices
	}
	if len(devices)+len(reported) > maxHealthDevices {
		maps.DeleteFunc(devices, func(_ deviceKey, device DeviceHealth) bool { return !now.Before(device.end()) })
	}
	var problem error
	for _, report := range reported {
		device, err := deviceHealth(report, now)
		key := deviceKey{device.Pool, device.Device}
		if _, known := devices[key]; err == nil && !known && len(devices) >= maxHealthDevices {
			err = fmt.Errorf("more than %d devices", maxHealthDevices)
		}
		if err != nil {
			problem = cmp.Or(problem, err)
			continue
		}
		devices[key] = device
	}
	return problem
}

func deviceHealth(report *drahealth.DeviceHealth, now time.Time) (DeviceHealth, error) {
	device := DeviceHealth{
		Pool: report.GetDevice().GetPoolName(), Device: report.GetDevice().GetDeviceName(),
		Status: Unknown, Message: clipMessage(report.GetMessage()), LastReport: now, Timeout: defaultHealthTimeout,
	}
	switch report.GetHealth() {
	case drahealth.HealthStatus_HEALTHY:
		device.Status = Healthy
	case drahealth.HealthStatus_UNHEALTHY:
		device.Status = Unhealthy
	default: // what later versions may add
	}
	if seconds := report.GetHealthCheckTimeoutSeconds(); seconds > 0 {
		device.Timeout = time.Duration(min(seconds, int64(maxHealthTimeout/time.Second))) * time.Second
	}
	return device, errors.Join(
		untrusted.Required("the pool's name", device.Pool, maxName), untrusted.Required("the device's name", device.Device, maxName))
}

func clipMessage(message string) string {
	characters := []rune(message)
	if len(characters) <= maxHealthMessage {
		return message
	}
	return string(characters[:maxHealthMessage-3]) + "..."
}

// healthRetry is the back-off before a health stream is opened again. A message on the stream resets it.
var healthRetry = backoff.Backoff{Min: time.Second, Max: 30 * time.Second}

// startHealth keeps the health stream of an instance open, if it offers one. The caller holds h.mu.
func (h *Handler) startHealth(in *instance) {
	if in.health == "" || in.endHealth != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	in.endHealth = cancel
	h.ending.Go(func() { h.keepHealth(ctx, in) })
}

// keepHealth reads the health streams of an instance until ctx ends.
func (h *Handler) keepHealth(ctx context.Context, in *instance) {
	for failures := 1; ; failures++ {
		said, err := h.followHealth(ctx, in)
		if ctx.Err() != nil {
			return
		}
		if said {
			failures = 1
		}
		pause := healthRetry.After(failures)
		h.logger().Warn("the health stream of a DRA driver ended and is opened again; its devices become unknown with their timeouts",
			"driver", in.driver, "endpoint", in.endpoint, "pause", pause, "error", err)
		if !backoff.Pause(ctx, pause) {
			return
		}
	}
}

// followHealth reads one health stream, and reports whether it got a message.
func (h *Handler) followHealth(ctx context.Context, in *instance) (said bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := watch(ctx, in)
	if err != nil {
		return false, endpoint.CallError("NodeWatchResources", err)
	}
	var former string
	for {
		report, err := stream.Recv()
		if err != nil {
			return said, endpoint.CallError("NodeWatchResources", err)
		}
		said = true
		problem := h.takeHealth(ctx, in.driver, report.GetDevices())
		if problem == nil {
			former = ""
		} else if text := problem.Error(); text != former {
			former = text
			h.logger().Warn("part of a DRA driver's health report was passed over",
				"driver", in.driver, "endpoint", in.endpoint, "error", problem)
		}
	}
}

func watch(ctx context.Context, in *instance) (grpc.ServerStreamingClient[drahealth.NodeWatchResourcesResponse], error) {
	stream, err := in.conn.NewStream(ctx, &drahealth.DRAResourceHealth_ServiceDesc.Streams[0], "/"+in.health+"/NodeWatchResources",
		grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(stream.SendMsg(&drahealth.NodeWatchResourcesRequest{}), stream.CloseSend()); err != nil {
		return nil, err
	}
	return &grpc.GenericClientStream[drahealth.NodeWatchResourcesRequest, drahealth.NodeWatchResourcesResponse]{ClientStream: stream}, nil
}
