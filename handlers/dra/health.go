package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/patchbay-dev/patchbay/internal/foreign"
)

// HealthStatus is the health of a device.
type HealthStatus string

// The values of HealthStatus. A device is also unknown if its driver has not reported it for longer than the device's timeout.
const (
	Healthy   HealthStatus = "healthy"
	Unhealthy HealthStatus = "unhealthy"
	Unknown   HealthStatus = "unknown"
)

// DeviceHealth is what a driver last reported about one of its devices.
type DeviceHealth struct {
	// Pool and Device name the device among those of its driver.
	Pool, Device string
	Status       HealthStatus
	// Message is the driver's explanation, at most 1,024 characters; often empty. It may hold any characters.
	Message string
	// LastReport is when the driver last said so, by the clock of this machine.
	LastReport time.Time
	// Timeout is how long after LastReport this counts: 30 s unless the driver says otherwise.
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

// Health returns what a driver last reported about its devices, ordered by pool and device. It is empty if the driver is not registered,
// offers no health service or has reported nothing yet.
func (h *Handler) Health(driver string) []DeviceHealth {
	devices, _, _ := h.healthOf(driver)
	return devices
}

// WatchHealth yields what Health returns, at first and then whenever a device comes, goes, or changes in anything but LastReport, until ctx
// ends or the handler is closed. It yields the present state: a slow reader misses states in between, and delays nobody else.
func (h *Handler) WatchHealth(ctx context.Context, driver string) iter.Seq[[]DeviceHealth] {
	return func(yield func([]DeviceHealth) bool) {
		var yielded []DeviceHealth
		for first := true; ; first = false {
			devices, changed, expiry := h.healthOf(driver)
			if changed == nil {
				return
			}
			if first || !slices.EqualFunc(devices, yielded, sameHealth) {
				if !yield(slices.Clone(devices)) {
					return
				}
				yielded = devices
			}
			if !awaitChange(ctx, changed, expiry) {
				return
			}
		}
	}
}

// awaitChange reports whether there may be something new: changed was closed or expiry, if it is not zero, has passed.
func awaitChange(ctx context.Context, changed <-chan struct{}, expiry time.Time) bool {
	until := ctx
	if !expiry.IsZero() {
		var cancel context.CancelFunc
		until, cancel = context.WithDeadline(ctx, expiry)
		defer cancel()
	}
	select {
	case <-changed:
	case <-until.Done():
	}
	return ctx.Err() == nil
}

func sameHealth(a, b DeviceHealth) bool {
	a.LastReport = b.LastReport
	return a == b
}

type deviceKey struct{ pool, device string }

// healthOf returns the devices of a driver, a channel that is closed with the next report, and when the next device becomes unknown.
func (h *Handler) healthOf(driver string) (devices []DeviceHealth, changed <-chan struct{}, expiry time.Time) {
	now := time.Now()
	h.mu.Lock()
	changed = h.healthChanged
	for _, device := range h.health[driver] {
		switch end := device.end(); {
		case device.Status == Unknown:
		case now.Before(end):
			if expiry.IsZero() || end.Before(expiry) {
				expiry = end
			}
		default:
			device.Status, device.Message = Unknown, ""
		}
		devices = append(devices, device)
	}
	h.mu.Unlock()
	slices.SortFunc(devices, func(a, b DeviceHealth) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Device, b.Device))
	})
	return devices, changed, expiry
}

// takeHealth stores a report of a driver, unless ctx, that of its stream, has ended. Devices that the report does not mention keep their
// state until their timeout. The error is the first reason for which a device was ignored.
func (h *Handler) takeHealth(ctx context.Context, driver string, reported []*drahealth.DeviceHealth) error {
	now := time.Now()
	h.mu.Lock()
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
	h.tellHealth()
	return problem
}

// tellHealth notifies WatchHealth. The caller holds h.mu.
func (h *Handler) tellHealth() {
	close(h.healthChanged)
	h.healthChanged = make(chan struct{})
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
		foreign.Required("the pool's name", device.Pool, maxName), foreign.Required("the device's name", device.Device, maxName))
}

func clipMessage(message string) string {
	if len(message) <= maxHealthMessage {
		return message // as many characters at most
	}
	characters := []rune(message)
	if len(characters) <= maxHealthMessage {
		return message
	}
	return string(characters[:maxHealthMessage-3]) + "..."
}
