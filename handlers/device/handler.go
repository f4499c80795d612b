// Package device is for device plugins (plugin type DevicePlugin): a handler that tracks their devices and allocates them to owners, so
// that no device is ever allocated twice.
//
// [Handler] is a cache.PluginHandler for plugins that are found in a plugin directory. Other plugins register the older way: they call the
// kubelet's registration service on kubelet.sock. The handler serves it in a separate directory, and announces each of these plugins in the
// plugin directory, so that the pipeline validates, registers, watches and remembers all plugins alike.
//
// An allocation is durable before [Handler.Allocate] returns it and stays until [Handler.Release], whatever happens to the plugin, its
// devices or the host's process. The caller decides who the owners are and applies the environment variables, mounts and device nodes in
// the answer: the package starts nothing and mounts nothing.
//
// The API is version v1beta1 of the device plugin API, k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1.
package device

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

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
	"github.com/patchbay-dev/patchbay/handlers/internal/keylock"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Store keeps the state of a [Handler] over restarts. A change is durable when the method returns; after an error, the change may or may
// not have been made. All methods must be safe for concurrent use. A Bucket of package dynamicplugins/boltstate is one.
type Store interface {
	Put(key string, value []byte) error
	Delete(key string) error
	// ForEach calls fn for every key until that returns an error, which it then returns.
	ForEach(fn func(key string, value []byte) error) error
}

const (
	defaultCallTimeout     = 30 * time.Second // the kubelet's for PreStartContainer; its Allocate has none
	defaultListTimeout     = 5 * time.Second
	defaultMaxDevices      = 16_384
	defaultMaxTotalDevices = 65_536
	defaultMaxResources    = 256
)

// Handler starts using device plugins and allocates their devices. Set its fields and call Open. The zero value works for plugins in plugin
// directories, and remembers nothing after a restart. The methods are safe for concurrent use, and none holds a lock while it calls a
// plugin or the store.
type Handler struct {
	// Store keeps the allocations; nil to keep them in memory only. It must stay open until Close returns.
	Store Store
	// SocketDir is the directory in which kubelet.sock is served for plugins that register the older way, and in which these have their
	// sockets; empty for none. The kubelet's is /var/lib/kubelet/device-plugins. It is created with mode 0750 if it is missing.
	SocketDir string
	// PluginDir is a plugin directory of the pipeline that the handler is part of, in which the plugins of SocketDir are announced. It must
	// not contain SocketDir, nor the reverse. It is needed with SocketDir only.
	PluginDir string
	// CallTimeout bounds one call to a plugin for which no client timeout is configured (default 30 s).
	CallTimeout time.Duration
	// ListTimeout bounds how long a registration waits for the first list of devices (default 5 s). A plugin that sends none by then is
	// registered without devices.
	ListTimeout time.Duration
	// MaxDevices bounds the devices of one resource (default 16,384). A list with more is refused.
	MaxDevices int
	// MaxTotalDevices bounds the devices of all resources together (default 65,536); those of resources without a plugin and without
	// allocations make room for new ones. A list beyond it is refused.
	MaxTotalDevices int
	// MaxResources bounds the known resources (default 256); those without a plugin and without allocations make room for new ones.
	MaxResources int
	// Logger logs what happens to plugins; nil discards it.
	Logger *slog.Logger

	older *older          // nil without SocketDir
	life  context.Context //nolint:containedctx // Close cancels it, and with it all calls; nil before Open
	end   context.CancelFunc
	// running counts calls of methods, and goroutines. It grows only under mu, until Close has released all plugins.
	running sync.WaitGroup
	owners  keylock.Locks[ownerKey] // of calls for allocations that have not ended

	mu        sync.Mutex // guards the rest, including what the resources point to; held for short steps only
	open      bool
	resources map[string]*resource
	changed   chan struct{} // closed at the next change
}

// The reasons for which methods of a [Handler] fail. Their errors wrap one of them, or that of the context.
var (
	// ErrInvalid means that the request is malformed, whatever the devices are.
	ErrInvalid = errors.New("invalid request")
	// ErrNotFound means that the resource, the device or the allocation is unknown.
	ErrNotFound = errors.New("not found")
	// ErrNotEnough means that fewer devices are free and healthy than wanted.
	ErrNotEnough = errors.New("not enough devices")
	// ErrUnhealthy means that a requested device is not healthy.
	ErrUnhealthy = errors.New("device is not healthy")
	// ErrInUse means that a requested device has another owner.
	ErrInUse = errors.New("device is in use")
	// ErrConflict means that the owner already has an allocation of that resource from a different request.
	ErrConflict = errors.New("allocation is another one")
	// ErrUnavailable means that the plugin is away, or that its list of devices may be out of date.
	ErrUnavailable = errors.New("plugin is not available")
	// ErrRefused means that the plugin refused, did not answer in time or gave an invalid answer.
	ErrRefused = errors.New("plugin refused")
	// ErrClosed means that the handler is closed, or was not opened yet.
	ErrClosed = errors.New("device handler is closed")
)

var (
	_ cache.PluginHandler       = (*Handler)(nil)
	_ cache.ContextRegistrar    = (*Handler)(nil)
	_ cache.InstanceGoneHandler = (*Handler)(nil)
)

// Open loads the allocations of the store, and serves kubelet.sock if there is a SocketDir. It sets fields that are zero to their defaults.
// The caller closes the handler. Open fails if a field is invalid, the store cannot be read, or kubelet.sock cannot be served, for example
// because another process serves it. A handler whose fields are valid is opened at most once, even if that fails.
func (h *Handler) Open() error {
	if err := h.init(); err != nil {
		return fmt.Errorf("cannot create a handler for device plugins: %w", err)
	}
	return nil
}

func (h *Handler) init() error {
	if h.life != nil {
		return errors.New("it was opened before")
	}
	if err := h.check(); err != nil {
		return err
	}
	h.CallTimeout = cmp.Or(h.CallTimeout, defaultCallTimeout)
	h.ListTimeout = cmp.Or(h.ListTimeout, defaultListTimeout)
	h.MaxDevices = cmp.Or(h.MaxDevices, defaultMaxDevices)
	h.MaxTotalDevices = cmp.Or(h.MaxTotalDevices, defaultMaxTotalDevices)
	h.MaxResources = cmp.Or(h.MaxResources, defaultMaxResources)
	h.Logger = cmp.Or(h.Logger, slog.New(slog.DiscardHandler))
	h.Store = cmp.Or[Store](h.Store, forgetful{})
	h.life, h.end = context.WithCancel(context.Background())
	h.resources, h.changed = map[string]*resource{}, make(chan struct{})
	if err := h.load(); err != nil {
		return err
	}
	if h.SocketDir != "" {
		var err error
		if h.older, err = h.serveOlder(); err != nil {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = true
	return nil
}

func (h *Handler) check() error {
	if min(h.CallTimeout, h.ListTimeout) < 0 || min(h.MaxDevices, h.MaxTotalDevices, h.MaxResources) < 0 {
		return errors.New("a timeout or a bound is negative: use 0 for the default")
	}
	if h.SocketDir == "" {
		return nil
	}
	if h.PluginDir == "" {
		return errors.New("plugins that register the older way have to be announced in a plugin directory; set PluginDir")
	}
	return CheckDirs(h.SocketDir, h.PluginDir)
}

// Close ends calls in flight and releases all plugins. Allocations stay in the store. The pipeline may still call the handler afterwards.
// Calling Close again has no effect.
func (h *Handler) Close() error {
	h.mu.Lock()
	if h.end == nil {
		h.mu.Unlock()
		return nil // it was not opened
	}
	h.open = false
	h.tell()
	names := slices.Collect(maps.Keys(h.resources))
	h.mu.Unlock()
	for _, name := range names {
		h.drop(name)
	}
	h.end()
	var err error
	if h.older != nil {
		err = h.older.close()
	}
	h.running.Wait()
	return err
}

// bound returns a context that Close cancels too.
func (h *Handler) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(h.life, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// enter makes Close wait for the caller. Close cancels the returned context. The caller calls leave when it has finished.
func (h *Handler) enter(ctx context.Context) (bounded context.Context, leave func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.open {
		return nil, nil, ErrClosed
	}
	h.running.Add(1)
	bounded, cancel := h.bound(ctx)
	return bounded, func() { cancel(); h.running.Done() }, nil
}

// Changed returns a channel that is closed when a device or an allocation changes. Call it before Snapshot to miss nothing.
func (h *Handler) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// notify is tell for callers that do not hold h.mu.
func (h *Handler) notify() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tell()
}

// tell closes the channel that Changed returns. The caller holds h.mu.
func (h *Handler) tell() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// ValidatePlugin checks that the name is an extended resource, such as example.com/gpu, and that a version is supported. The pipeline sends
// the error to the plugin.
func (h *Handler) ValidatePlugin(pluginName, _ string, versions []string) error {
	if err := cmp.Or(checkResource(pluginName), checkVersions(versions)); err != nil {
		return fmt.Errorf("cannot use device plugin %s: %w", untrusted.Quote(pluginName), err)
	}
	return nil
}

// RegisterPlugin is RegisterPluginContext without a context and without a registration, for callers other than the pipeline. It fails for
// the same reasons.
func (h *Handler) RegisterPlugin(pluginName, endpointPath string, versions []string, pluginClientTimeout *time.Duration) error {
	_, err := h.RegisterPluginContext(context.Background(), pluginName, endpointPath, versions, pluginClientTimeout)
	return err
}

// RegisterPluginContext asks the plugin for its options and starts watching its devices; an older instance of the same resource is
// released. It blocks until the plugin has sent the first list of devices, at most for one call and [Handler].ListTimeout.
// pluginClientTimeout, or else [Handler].CallTimeout, bounds each call, including later ones.
//
// The error wraps [cache.ErrRetry] if the plugin does not answer or is not ready. Other errors describe a problem of the plugin.
func (h *Handler) RegisterPluginContext(
	ctx context.Context, pluginName, endpointPath string, versions []string, pluginClientTimeout *time.Duration,
) (plugin.Registration, error) {
	p, err := h.register(ctx, pluginName, endpointPath, versions, pluginClientTimeout)
	if err != nil {
		h.drop(pluginName) // after an error the handler has no instance
		return plugin.Registration{}, fmt.Errorf("cannot use device plugin %s at %s: %w", untrusted.Quote(pluginName), endpointPath, err)
	}
	h.older.dropDead(pluginName) // one that was superseded before it was registered is watched by nobody
	found := plugin.Registration{WatchEndpoint: true, Details: map[string]string{}}
	if p.options.GetPreStartRequired() {
		found.Details[KeyPreStart] = "true"
	}
	if p.options.GetGetPreferredAllocationAvailable() {
		found.Details[KeyPreferred] = "true"
	}
	return found, nil
}

// Keys of the details that the registry stores with an instance. Each is "true" or missing.
const (
	// KeyPreStart means that the plugin prepares devices before each start of their owner.
	KeyPreStart = "device/pre-start-required"
	// KeyPreferred means that the plugin has preferences among its devices.
	KeyPreferred = "device/preferred-allocation"
)

func (h *Handler) register(
	ctx context.Context, name, path string, versions []string, clientTimeout *time.Duration,
) (*devicePlugin, error) {
	if err := cmp.Or(checkResource(name), checkVersions(versions)); err != nil {
		return nil, err
	}
	ctx, leave, err := h.enter(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, cache.ErrRetry)
	}
	defer leave()
	p, err := newPlugin(ctx, name, path, endpoint.Timeout(clientTimeout, h.CallTimeout))
	if err != nil {
		return nil, err
	}
	err = h.meet(ctx, p)
	if err == nil {
		err = h.install(p)
	}
	if err != nil {
		h.forsake(p)
		if h.older.announcementAt(path) != nil && isDead(path) {
			// It was there when it registered, and registers again when it is back: this does not mean "not yet".
			return nil, errors.New("it ended: " + err.Error())
		}
		return nil, err
	}
	h.Logger.Info("device plugin in use", "resource", name, "endpoint", path)
	return p, nil
}

func (h *Handler) meet(ctx context.Context, p *devicePlugin) error {
	if err := p.askOptions(ctx, h.older.announcementAt(p.path)); err != nil {
		return err
	}
	h.startWatch(p)
	waiting, cancel := context.WithTimeout(ctx, h.ListTimeout)
	defer cancel()
	select {
	case err := <-p.first:
		return err
	case <-waiting.Done():
	}
	if ctx.Err() != nil {
		return fmt.Errorf("given up before it sent a list of devices: %w: %w", context.Cause(ctx), cache.ErrRetry)
	}
	h.Logger.Warn("device plugin has sent no list of devices yet", "resource", p.resource, "endpoint", p.path)
	return nil
}

func (h *Handler) install(p *devicePlugin) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.open {
		return fmt.Errorf("%w: %w", ErrClosed, cache.ErrRetry)
	}
	if err := h.makeRoom(p.resource, len(p.devices)); err != nil {
		return err
	}
	r := h.resource(p.resource)
	if r.plugin != nil {
		h.release(r.plugin)
	}
	r.plugin = p
	if p.devices != nil {
		r.devices, p.devices = p.devices, nil
	}
	h.tell()
	return nil
}

// makeRoom makes room for a resource with so many devices: it forgets others that are idle, first those that have been idle for longest.
// If there is too little room, it changes nothing and returns an error. The caller holds h.mu.
func (h *Handler) makeRoom(name string, devices int) error {
	var idle []*resource
	known, total, kept := 1, devices, 0
	for _, r := range h.resources {
		switch {
		case r.name == name:
			continue
		case r.idle():
			idle = append(idle, r)
		default:
			kept += len(r.devices)
		}
		known++
		total += len(r.devices)
	}
	isNew := h.resources[name] == nil
	if isNew && known-len(idle) > h.MaxResources {
		return fmt.Errorf("%d resources are known already, and more are not allowed; end a device plugin or release its allocations",
			len(h.resources))
	}
	if kept+devices > h.MaxTotalDevices {
		return fmt.Errorf("the list has %d devices, resources in use have %d, and more than %d in total are not allowed; "+
			"end a device plugin or release its allocations", devices, kept, h.MaxTotalDevices)
	}
	slices.SortFunc(idle, func(a, b *resource) int { return a.gone.Compare(b.gone) })
	for ; isNew && known > h.MaxResources || total > h.MaxTotalDevices; idle = idle[1:] {
		known--
		total -= len(idle[0].devices)
		delete(h.resources, idle[0].name)
	}
	return nil
}

// DeRegisterPlugin releases the plugin of a resource. The devices are unavailable until a plugin registers again; allocations stay.
func (h *Handler) DeRegisterPlugin(pluginName string) {
	if h.drop(pluginName) {
		h.Logger.Info("device plugin not in use any more", "resource", pluginName)
	}
	h.older.dropDead(pluginName)
}

// InstanceGone removes the announcement of an instance that is gone. The handler has no connection to a superseded one.
func (h *Handler) InstanceGone(pluginName, _ string) {
	h.older.dropDead(pluginName)
}

// drop releases the plugin of a resource, and reports whether there was one.
func (h *Handler) drop(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.resources[name]
	if r == nil || r.plugin == nil {
		return false
	}
	h.release(r.plugin)
	r.plugin, r.gone = nil, time.Now()
	h.tidy(r)
	h.tell()
	return true
}

// tidy removes a resource that has no plugin, devices or allocations. The caller holds h.mu.
func (h *Handler) tidy(r *resource) {
	if r.idle() && len(r.devices) == 0 {
		delete(h.resources, r.name)
	}
}

// forgetful is the store of a handler without a Store.
type forgetful struct{}

func (forgetful) Put(string, []byte) error                           { return nil }
func (forgetful) Delete(string) error                                { return nil }
func (forgetful) ForEach(func(key string, value []byte) error) error { return nil }
