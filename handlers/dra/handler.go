// Package dra is the consumer of drivers for dynamic resource allocation (plugin type DRAPlugin): a handler that starts using drivers as
// the kubelet does, and has them prepare and unprepare resource claims.
//
// [Handler] keeps one connection to every registered instance of a driver. While a driver is replaced, two instances are registered; calls
// go to the newer one, and the older one is released when its socket is gone. [Handler.Prepare] and [Handler.Unprepare] repeat a call that
// did not reach the driver, or whose answer was lost, which is safe because drivers must be idempotent. If a driver announces the health
// service, [Handler.Health] returns the last reported health of its devices.
//
// [Dispensers] make DispensePlugin hand out a typed client. It also works without the handler.
//
// The package allocates nothing and knows no Kubernetes API: the host and its drivers decide which claims there are, and which devices are
// allocated to them. The services are those of k8s.io/kubelet/pkg/apis/dra, in the versions v1 and v1beta1, and of
// k8s.io/kubelet/pkg/apis/dra-health/v1alpha1.
package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/internal/keylock"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Keys of the details that the handler stores in the registry with each driver.
const (
	// KeyService is the service for claims that is used, v1.DRAPlugin or v1beta1.DRAPlugin.
	KeyService = "dra/service"
	// KeyHealth is the health service, v1.DRAResourceHealth or v1alpha1.DRAResourceHealth. It is missing if the driver announces neither.
	KeyHealth = "dra/health"
)

const (
	defaultCallTimeout    = 45 * time.Second
	defaultTimeout        = 90 * time.Second
	defaultConnectTimeout = 10 * time.Second
)

// Handler is a [cache.PluginHandler] for DRA drivers. The zero value works; set its fields before the first call of a method. The methods
// are safe for concurrent use. Close the handler after the pipeline has ended.
type Handler struct {
	// CallTimeout bounds one call to a driver for which no client timeout is configured (default 45 s, as in the kubelet).
	CallTimeout time.Duration
	// Timeout bounds Prepare and Unprepare with all repetitions (default 90 s).
	Timeout time.Duration
	// ConnectTimeout bounds how long one registration waits for a connection to the driver (default 10 s). After that it fails with an error
	// that wraps [cache.ErrRetry], and the pipeline retries later.
	ConnectTimeout time.Duration
	// Logger logs the errors of health streams; nil discards them.
	Logger *slog.Logger

	claims keylock.Locks[claimKey] // of calls that have not ended
	ending sync.WaitGroup          // goroutines that read health streams, or wait for the last call of an instance; grows only under mu
	calls  sync.WaitGroup          // calls to drivers; grows only under mu while the handler is not closed
	end    context.CancelFunc
	life   context.Context //nolint:containedctx // Close cancels it, and with it all calls

	// mu is never held during a call to a driver. Lock it with the lock method.
	mu      sync.Mutex
	drivers map[string][]*instance // oldest first
	changed chan struct{}          // closed and replaced when an instance is added
	health  map[string]map[deviceKey]DeviceHealth
	closed  bool
}

var (
	_ cache.PluginHandler       = (*Handler)(nil)
	_ cache.ContextRegistrar    = (*Handler)(nil)
	_ cache.InstanceGoneHandler = (*Handler)(nil)
)

// ErrClosed is returned by the methods of a [Handler] after Close.
var ErrClosed = errors.New("the DRA handler is closed")

// ErrNotRegistered is wrapped by the errors of Prepare and Unprepare when there is no driver of that name.
var ErrNotRegistered = errors.New("no DRA driver of that name is registered")

// lock locks mu. The first call initializes the unexported fields.
func (h *Handler) lock() {
	h.mu.Lock()
	if h.life == nil {
		h.life, h.end = context.WithCancel(context.Background())
		h.drivers, h.changed, h.health = map[string][]*instance{}, make(chan struct{}), map[string]map[deviceKey]DeviceHealth{}
	}
}

func (h *Handler) timeout() time.Duration { return cmp.Or(h.Timeout, defaultTimeout) }

func (h *Handler) logger() *slog.Logger { return cmp.Or(h.Logger, slog.New(slog.DiscardHandler)) }

// ValidatePlugin checks the name of a driver and that one of its services is supported. The pipeline sends the error to the driver.
func (h *Handler) ValidatePlugin(pluginName, _ string, versions []string) error {
	if min(h.CallTimeout, h.Timeout, h.ConnectTimeout) < 0 {
		return errors.New("a timeout of the handler for DRA drivers is negative; use 0 for the default")
	}
	if err := untrusted.PluginName(registerapi.DRAPlugin, pluginName); err != nil {
		return err
	}
	if _, err := negotiate(versions); err != nil {
		return fmt.Errorf("cannot use DRA driver %s: %w", pluginName, err)
	}
	return nil
}

// RegisterPlugin is RegisterPluginContext for callers other than the pipeline; it has no context, and fails for the same reasons.
func (h *Handler) RegisterPlugin(pluginName, endpoint string, versions []string, pluginClientTimeout *time.Duration) error {
	_, err := h.RegisterPluginContext(context.Background(), pluginName, endpoint, versions, pluginClientTimeout)
	return err
}

// RegisterPluginContext connects to the driver, which is the newest instance of its name from then on. It blocks until there is a
// connection, at most for [Handler].ConnectTimeout. pluginClientTimeout, or else [Handler].CallTimeout, bounds each later call. Calls to an
// older instance continue.
//
// The error wraps [cache.ErrRetry] if there is no connection in time. After an error no instance of that name is left.
func (h *Handler) RegisterPluginContext(
	ctx context.Context, pluginName, endpoint string, versions []string, pluginClientTimeout *time.Duration,
) (plugin.Registration, error) {
	if err := h.ValidatePlugin(pluginName, endpoint, versions); err != nil {
		h.DeRegisterPlugin(pluginName)
		return plugin.Registration{}, err
	}
	in, err := h.connect(ctx, pluginName, endpoint, versions, pluginClientTimeout)
	if err == nil {
		err = h.add(in)
	}
	if err != nil {
		h.DeRegisterPlugin(pluginName)
		return plugin.Registration{}, fmt.Errorf("cannot use DRA driver %s at %s: %w", pluginName, endpoint, err)
	}
	registration := plugin.Registration{Details: map[string]string{KeyService: in.service}, WatchEndpoint: true}
	if in.health != "" {
		registration.Details[KeyHealth] = in.health
	}
	return registration, nil
}

// add makes an instance the newest of its driver. It replaces an instance at the same endpoint.
func (h *Handler) add(in *instance) error {
	h.lock()
	if h.closed {
		h.mu.Unlock()
		in.conn.Retire()
		return ErrClosed
	}
	for _, other := range h.drivers[in.driver] {
		other.stopHealth() // what the newest says of the devices is what counts
	}
	h.drivers[in.driver] = append(h.drivers[in.driver], in)
	h.startHealth(in)
	close(h.changed)
	h.changed = make(chan struct{})
	h.mu.Unlock()
	h.remove(in.driver, func(other *instance) bool { return other != in && other.endpoint == in.endpoint })
	return nil
}

// DeRegisterPlugin releases all instances of a driver. Calls in flight are not cancelled; the connection is closed after the last.
func (h *Handler) DeRegisterPlugin(pluginName string) {
	h.remove(pluginName, func(*instance) bool { return true })
}

// InstanceGone releases the instance of a driver at an endpoint, in the same way as DeRegisterPlugin.
func (h *Handler) InstanceGone(pluginName, endpoint string) {
	h.remove(pluginName, func(in *instance) bool { return in.endpoint == endpoint })
}

// remove releases instances of a driver. The newest remaining one then reports the health of the devices.
func (h *Handler) remove(driver string, which func(*instance) bool) {
	h.lock()
	defer h.mu.Unlock()
	var left []*instance
	for _, in := range h.drivers[driver] {
		if which(in) {
			in.stopHealth()
			h.ending.Go(in.conn.Retire)
		} else {
			left = append(left, in)
		}
	}
	if len(left) > 0 {
		h.drivers[driver] = left
		h.startHealth(left[len(left)-1])
	} else {
		delete(h.drivers, driver)
		delete(h.health, driver)
	}
}

// Close cancels all calls, closes all connections and waits until nothing of the handler is running, except callers of its methods. Closing
// again does nothing.
func (h *Handler) Close() error {
	h.lock()
	if !h.closed {
		h.closed = true
		close(h.changed)
	}
	drivers := slices.Collect(maps.Keys(h.drivers))
	h.mu.Unlock()
	h.end()
	for _, driver := range drivers {
		h.DeRegisterPlugin(driver)
	}
	h.ending.Wait()
	h.calls.Wait()
	return nil
}

// newest returns the newest instance of a driver, or an error if there is none. Its caller ends with conn.Users.Done and calls.Done.
// changed is closed when an instance is added, or with the handler.
func (h *Handler) newest(driver string) (in *instance, changed <-chan struct{}, err error) {
	h.lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, nil, ErrClosed
	}
	instances := h.drivers[driver]
	if len(instances) == 0 {
		return nil, h.changed, fmt.Errorf("cannot call DRA driver %s: %w; start it, or see patchbay status", untrusted.Clip(driver),
			ErrNotRegistered)
	}
	in = instances[len(instances)-1]
	in.conn.Users.Add(1)
	h.calls.Add(1)
	return in, h.changed, nil
}

func (h *Handler) isClosed() bool {
	h.lock()
	defer h.mu.Unlock()
	return h.closed
}

func (h *Handler) isNewest(in *instance) bool {
	h.lock()
	defer h.mu.Unlock()
	instances := h.drivers[in.driver]
	return len(instances) > 0 && instances[len(instances)-1] == in
}
