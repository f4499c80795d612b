// Package cache holds the pipeline's state, which is the desired state of the world (the sockets that exist) and the actual state of the
// world (the registered plugins), and defines [PluginHandler], the interface of a handler.
//
// It stores facts and notifies subscribers of changes. It neither reads the file system nor calls plugins: package pluginwatcher fills the
// desired state and makes the actual state match it.
//
// Names and promises follow k8s.io/kubernetes/pkg/kubelet/pluginmanager/cache. In addition, each appearance of a socket has an identity, so
// that a recreated socket is a new one however coarse the clock is, and changes are notified, so that nobody polls.
package cache

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// PluginHandler handles the plugins of one type. The pipeline calls it in the order of this state machine, sequentially for each plugin
// name:
//
//	socket created ──▶ Validate ──▶ Register ──▶ DeRegister
//	                      ▲  │         │  │          ▲
//	                      │  ▼         ▼  │          │ socket deleted, nobody accepts on it,
//	                      │ out       out │          │ or the handler is removed
//	                      └───────────────┘──────────┘
//	                       re-registration: a newer socket announced the same name
//
// Calls for one name never overlap; calls for different names run concurrently. A method may block; it only delays its own name. A panic
// counts as an error.
//
// After a re-registration, only the end of the newer socket leads to DeRegisterPlugin. A failed RegisterPlugin is never followed by
// DeRegisterPlugin: the handler then has no instance of that name. An error that wraps [ErrRetry] means "not yet": the pipeline tries again
// later and sends no refusal.
//
// The interface is that of the kubelet's plugin manager.
type PluginHandler interface {
	// ValidatePlugin returns an error if the information provided by the plugin is erroneous, for example if none of the
	// versions is supported.
	ValidatePlugin(pluginName string, endpoint string, versions []string) error
	// RegisterPlugin starts using the plugin. The endpoint is the Unix socket of the plugin's own services.
	// pluginClientTimeout is the timeout configured for calls to this plugin, nil when none is configured. The plugin receives the error.
	RegisterPlugin(pluginName, endpoint string, versions []string, pluginClientTimeout *time.Duration) error
	// DeRegisterPlugin stops using the plugin.
	DeRegisterPlugin(pluginName string)
}

// InstanceGoneHandler is an optional interface of a [PluginHandler]. InstanceGone is called, in sequence with the other calls for the
// plugin name, when a superseded instance goes away while a newer one stays registered, and when the registered instance was registered
// again under another endpoint, so that the handler can close connections to the older endpoint. It names the endpoint that RegisterPlugin
// received, and is not called while a live instance is registered under the same endpoint. After DeRegisterPlugin, and after a failed
// RegisterPlugin, it is not called for earlier endpoints.
type InstanceGoneHandler interface {
	InstanceGone(pluginName, endpoint string)
}

// ContextRegistrar is an optional interface of a [PluginHandler]. RegisterPluginContext is then called instead of RegisterPlugin. The
// context ends when the plugin's socket is removed, when the pipeline stops, and when the handler timeout expires; the handler should then
// return an error soon. The returned Registration is stored with the instance. The context carries the dialer for the plugin's endpoint;
// see [EndpointDialer].
type ContextRegistrar interface {
	RegisterPluginContext(
		ctx context.Context, pluginName, endpoint string, versions []string, pluginClientTimeout *time.Duration,
	) (plugin.Registration, error)
}

type endpointDialerKey struct{}

// WithEndpointDialer returns a context for [ContextRegistrar] that has a dialer for the plugin's endpoint.
func WithEndpointDialer(ctx context.Context, dial func(ctx context.Context, path string) (net.Conn, error)) context.Context {
	return context.WithValue(ctx, endpointDialerKey{}, dial)
}

// EndpointDialer returns the dialer in the context of RegisterPluginContext, or nil. Handlers use it for every connection to the plugin's
// endpoint. It checks who listens there each time, so that a plugin cannot make the host connect where the plugin's user may not. It stays
// valid after the context has ended, and is safe for concurrent use.
func EndpointDialer(ctx context.Context) func(ctx context.Context, path string) (net.Conn, error) {
	dial, _ := ctx.Value(endpointDialerKey{}).(func(context.Context, string) (net.Conn, error))
	return dial
}

// RegistrationKeeper is an optional interface of a [PluginHandler]. KeepRegistration is called, in sequence with the other calls for the
// plugin name, when a plugin was registered but could not be notified, with the reason. If it returns true, the plugin stays registered and
// is notified later, through a re-registration. Otherwise, and without this interface, DeRegisterPlugin follows and registration is tried
// again later.
type RegistrationKeeper interface {
	KeepRegistration(pluginName string, reason error) bool
}

// DeprecatedDirValidator is an optional interface of a [PluginHandler]. ValidatePluginInDir is then called instead of ValidatePlugin, and
// also receives whether the socket was found in the deprecated plugin directory.
type DeprecatedDirValidator interface {
	ValidatePluginInDir(pluginName, endpoint string, versions []string, foundInDeprecatedDir bool) error
}

// ErrRetry is wrapped by the error of a handler that cannot accept the plugin yet. The pipeline retries with back-off and sends no refusal,
// since some plugins exit when they are refused. A plugin that was registered before stays in the registry, but is not dispensed until it
// is accepted.
var ErrRetry = errors.New("not ready yet, retry later")
