package patchbay

import (
	"context"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/plugin"
)

// HandlerFuncs is a handler that calls its functions. Each may be nil, which accepts every plugin and does nothing. See cache.PluginHandler
// for when they are called.
type HandlerFuncs struct {
	Validate func(pluginName, endpoint string, versions []string) error
	// The context of Register ends when the timeout for handlers passes or the Runtime stops.
	Register   func(ctx context.Context, pluginName, endpoint string, versions []string) error
	Deregister func(pluginName string)
}

// AcceptHandler returns a handler that accepts every plugin and does nothing else: for types whose plugins only need to be stored and
// dispensed.
func AcceptHandler() cache.PluginHandler { return HandlerFuncs{} }

// ValidatePlugin implements [cache.PluginHandler].
func (h HandlerFuncs) ValidatePlugin(pluginName, endpoint string, versions []string) error {
	if h.Validate == nil {
		return nil
	}
	return h.Validate(pluginName, endpoint, versions)
}

// RegisterPlugin implements [cache.PluginHandler].
func (h HandlerFuncs) RegisterPlugin(pluginName, endpoint string, versions []string, timeout *time.Duration) error {
	_, err := h.RegisterPluginContext(context.Background(), pluginName, endpoint, versions, timeout)
	return err
}

// RegisterPluginContext implements [cache.ContextRegistrar].
func (h HandlerFuncs) RegisterPluginContext(
	ctx context.Context, pluginName, endpoint string, versions []string, _ *time.Duration,
) (plugin.Registration, error) {
	if h.Register == nil {
		return plugin.Registration{}, nil
	}
	return plugin.Registration{}, h.Register(ctx, pluginName, endpoint, versions)
}

// DeRegisterPlugin implements [cache.PluginHandler].
func (h HandlerFuncs) DeRegisterPlugin(pluginName string) {
	if h.Deregister != nil {
		h.Deregister(pluginName)
	}
}
