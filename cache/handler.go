package cache

import (
	"context"
	"errors"
	"net"
	"time"
)

// PluginHandler is the consumer of one plugin type. The pipeline walks it through this state machine, strictly and
// sequentially for each plugin name:
//
//	socket created ──▶ Validate ──▶ Register ──▶ DeRegister
//	                      ▲  │         │  │          ▲
//	                      │  ▼         ▼  │          │ socket deleted, nobody accepts on it,
//	                      │ out       out │          │ or the handler is removed
//	                      └───────────────┘──────────┘
//	                       re-registration: a newer socket announced the same name
//
// No method is called for a name while another call for that name runs; calls for different names run concurrently. A
// method may block: it holds up its own plugin name only. A panic counts as an error of the call.
//
// After a re-registration only the end of the newer socket leads to DeRegisterPlugin. A failed RegisterPlugin is never
// followed by DeRegisterPlugin: after it the handler has no instance of that name. An error that wraps [ErrRetry] means "not
// yet": the pipeline asks again later and the plugin is not told of a refusal.
//
// The interface is that of the kubelet's plugin manager.
type PluginHandler interface {
	// ValidatePlugin returns an error if the information provided by the plugin is erroneous, for example if none of the
	// versions is supported.
	ValidatePlugin(pluginName string, endpoint string, versions []string) error
	// RegisterPlugin starts using the plugin. The endpoint is the Unix socket on which the plugin's own services answer.
	// pluginClientTimeout is the timeout configured for calls to this plugin, nil when none is configured. An error is told
	// to the plugin.
	RegisterPlugin(pluginName, endpoint string, versions []string, pluginClientTimeout *time.Duration) error
	// DeRegisterPlugin ends the use of the plugin.
	DeRegisterPlugin(pluginName string)
}

// InstanceGoneHandler is a power that a [PluginHandler] may also have. InstanceGone is called, in the lane of the plugin
// name, when a superseded instance goes while a newer one stays registered, and when the registered instance was registered
// again under another endpoint, so that a handler that still holds connections to the older endpoint can let go of them. It
// names the endpoint that RegisterPlugin was given, and is not called if a living instance was registered under the same.
// After DeRegisterPlugin, and after a failed RegisterPlugin, none of the endpoints from before counts.
type InstanceGoneHandler interface {
	InstanceGone(pluginName, endpoint string)
}

// ContextRegistrar is a power that a [PluginHandler] may also have. If it has it, RegisterPluginContext is called instead of
// RegisterPlugin. The context ends when the plugin's socket goes, when the pipeline stops, and when the time configured for handlers has
// passed; the handler should then return an error soon. What it returns beside the error is kept with the instance. The context has what
// the handler connects to the plugin with; see [EndpointDialer].
type ContextRegistrar interface {
	RegisterPluginContext(
		ctx context.Context, pluginName, endpoint string, versions []string, pluginClientTimeout *time.Duration,
	) (Registration, error)
}

type endpointDialerKey struct{}

// WithEndpointDialer returns a context for [ContextRegistrar] that has a dialer for the plugin's endpoint.
func WithEndpointDialer(ctx context.Context, dial func(ctx context.Context, path string) (net.Conn, error)) context.Context {
	return context.WithValue(ctx, endpointDialerKey{}, dial)
}

// EndpointDialer returns the dialer of the context that RegisterPluginContext was given, or nil. A handler connects with it to the plugin's
// endpoint, also later and again: it judges who listens there each time, so that no plugin has the host connect with its rights where the
// plugin's user has none. It stays valid when the context has ended, and is safe for concurrent use.
func EndpointDialer(ctx context.Context) func(ctx context.Context, path string) (net.Conn, error) {
	dial, _ := ctx.Value(endpointDialerKey{}).(func(context.Context, string) (net.Conn, error))
	return dial
}

// Registration is what a handler found out about a plugin that it started to use. The zero value says nothing.
type Registration struct {
	// Roles are further plugin types under which the registry has the instance, with the same name and AllocID, for example csi-node:
	// it appears and goes under all of them together. A newer instance supersedes it in the roles that both have.
	Roles []string
	// Version is the plugin's own version. If it is empty, the first one that the plugin announced stands in its place.
	Version string
	// Details are kept in the options of the instance's entries in the registry, under the same keys. The prefix patchbay.dev/ is the
	// pipeline's own.
	Details map[string]string
	// WatchEndpoint asks for the instance to be given up also when nobody accepts on its endpoint any more, where that is another
	// socket than the one on which it registered. It is then registered again as soon as RegisterPluginContext succeeds.
	WatchEndpoint bool
}

// RegistrationKeeper is a power that a [PluginHandler] may also have. KeepRegistration is asked, in the lane of the plugin name, when a
// plugin was registered and could not be told so, with the reason. If it says true, the plugin stays registered and is told again later,
// through a re-registration; if not, as without this power, DeRegisterPlugin follows and registration is tried again later.
type RegistrationKeeper interface {
	KeepRegistration(pluginName string, reason error) bool
}

// DeprecatedDirValidator is a power that a [PluginHandler] may also have. If it has it, ValidatePluginInDir is called instead
// of ValidatePlugin and also says whether the socket was found in the deprecated plugin directory.
type DeprecatedDirValidator interface {
	ValidatePluginInDir(pluginName, endpoint string, versions []string, foundInDeprecatedDir bool) error
}

// ErrRetry is wrapped by the error of a handler that cannot take the plugin yet. The pipeline tries again with back-off and
// does not tell the plugin of a refusal: some plugins exit when they are refused. A plugin that the registry has from before stays there,
// and is not given out until it is taken.
var ErrRetry = errors.New("not ready yet, retry later")
