package pluginwatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/internal/grpcsock"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta1"
	"github.com/patchbay-dev/patchbay/pluginwatcher/example_plugin_apis/v1beta2"
)

// exampleCallTimeout bounds the calls that the example handler makes to one plugin.
const exampleCallTimeout = 5 * time.Second

// examplePluginEvent is the name of the method of an example handler that was called.
type examplePluginEvent string

const (
	exampleEventValidate   examplePluginEvent = "ValidatePlugin"
	exampleEventRegister   examplePluginEvent = "RegisterPlugin"
	exampleEventDeRegister examplePluginEvent = "DeRegisterPlugin"
)

func (e examplePluginEvent) String() string { return string(e) }

// exampleHandler is a [PluginHandler] that calls the example services of its plugins and records its own calls. All methods are safe for
// concurrent use.
type exampleHandler struct {
	supportedVersions   []string
	permitDeprecatedDir bool

	mu     sync.Mutex
	events map[string]chan examplePluginEvent // by plugin name
}

var _ PluginHandler = (*exampleHandler)(nil)

// NewExampleHandler returns a handler for example plugins. It accepts plugins that announce at least one of the supported versions. Plugins
// in the deprecated directory are accepted only if permitDeprecatedDir is true.
func NewExampleHandler(supportedVersions []string, permitDeprecatedDir bool) *exampleHandler {
	return &exampleHandler{
		supportedVersions:   slices.Clone(supportedVersions),
		permitDeprecatedDir: permitDeprecatedDir,
		events:              map[string]chan examplePluginEvent{},
	}
}

// ValidatePlugin refuses a plugin from the deprecated directory, unless permitted, and one without a supported version.
func (h *exampleHandler) ValidatePlugin(pluginName string, _ string, versions []string, foundInDeprecatedDir bool) error {
	h.sendEvent(pluginName, exampleEventValidate)
	if foundInDeprecatedDir && !h.permitDeprecatedDir {
		return fmt.Errorf("plugin %q was found in the deprecated directory: move its socket to the plugin directory", pluginName)
	}
	if len(h.common(versions)) == 0 {
		return fmt.Errorf("none of the versions %q of plugin %q is supported: supported are %q", versions, pluginName, h.supportedVersions)
	}
	return nil
}

// RegisterPlugin connects to the endpoint and calls the example service of every version that the plugin announced and the handler
// supports. A service that does not answer within 5 s is an error.
func (h *exampleHandler) RegisterPlugin(pluginName, endpoint string, versions []string) error {
	h.sendEvent(pluginName, exampleEventRegister)
	if err := callExampleServices(endpoint, h.common(versions)); err != nil {
		return fmt.Errorf("cannot use plugin %q at %s: %w", pluginName, endpoint, err)
	}
	return nil
}

// DeRegisterPlugin records the call.
func (h *exampleHandler) DeRegisterPlugin(pluginName string) {
	h.sendEvent(pluginName, exampleEventDeRegister)
}

// AddPluginName does nothing. The kubelet's example handler accepts only names that were added; this handler accepts any.
func (h *exampleHandler) AddPluginName(string) {}

// EventChan returns a channel that receives the calls for a plugin when they begin, in order. It buffers the newest 64, including those
// from before the call of EventChan. It is never closed.
func (h *exampleHandler) EventChan(pluginName string) chan examplePluginEvent {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.events[pluginName] == nil {
		h.events[pluginName] = make(chan examplePluginEvent, exampleBacklog)
	}
	return h.events[pluginName]
}

func (h *exampleHandler) sendEvent(pluginName string, event examplePluginEvent) {
	sendDroppingOldest(h.EventChan(pluginName), event)
}

// common returns the versions that the handler supports.
func (h *exampleHandler) common(versions []string) []string {
	return slices.DeleteFunc(slices.Clone(versions), func(version string) bool {
		return !slices.Contains(h.supportedVersions, version)
	})
}

// callExampleServices calls the example service of each version at the endpoint. It ignores other versions.
func callExampleServices(endpoint string, versions []string) (err error) {
	conn, err := grpcsock.Dial(endpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), exampleCallTimeout)
	defer cancel()
	for _, version := range versions {
		var reply interface{ GetError() string }
		switch version {
		case "v1beta1":
			reply, err = v1beta1.NewExampleClient(conn).GetExampleInfo(ctx, &v1beta1.ExampleRequest{})
		case "v1beta2":
			reply, err = v1beta2.NewExampleClient(conn).GetExampleInfo(ctx, &v1beta2.ExampleRequest{})
		default:
			continue
		}
		if err != nil {
			return fmt.Errorf("%s GetExampleInfo: %w", version, err)
		}
		if text := reply.GetError(); text != "" {
			return fmt.Errorf("%s GetExampleInfo answered: %s", version, text)
		}
	}
	return nil
}
