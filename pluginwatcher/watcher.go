// Package pluginwatcher discovers plugins by their sockets in plugin directories and passes them to the handlers of their types:
// directories in, handler calls out.
//
// A plugin serves the kubelet's registration service (k8s.io/kubelet/pkg/apis/pluginregistration/v1) on a socket in a plugin directory or
// in any of its subdirectories. Names that start with a dot and files that are not sockets are ignored. When a socket appears, and at
// startup, the plugin is asked for its type and name, its handler validates and registers it, and the plugin is notified. When the socket
// is removed or stops accepting, the plugin is deregistered.
//
// [Watcher] and [PluginHandler] are those of the kubelet's pluginwatcher, with the same promises. They run the pipeline of package
// patchbay, which is for hosts that also remember and dispense plugins, or have handlers of the later kubelet interface,
// cache.PluginHandler. This package adds only an example plugin and an example handler.
package pluginwatcher

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/discover/pipeline"
	"github.com/patchbay-dev/patchbay/plugin"
)

// stopTimeout is how long Stop waits for handlers that are in a call.
const stopTimeout = 10 * time.Second

// Watcher finds plugins and hands them to their handlers. Its methods are safe for concurrent use.
type Watcher struct {
	pipeline *pipeline.Watcher

	// lifecycle makes Start and Stop take turns.
	lifecycle sync.Mutex
	stop      func() error // set by Start
}

// NewWatcher returns a Watcher for a plugin directory and, if deprecatedSockDir is not empty, a directory that was used by older
// plugins; new plugins should not use that one. It does nothing before [Watcher.Start] or [Watcher.Run]. Relative paths are relative to the
// current working directory.
func NewWatcher(sockDir string, deprecatedSockDir string) *Watcher {
	return &Watcher{pipeline: &pipeline.Watcher{Dirs: []string{absolute(sockDir)}, DeprecatedDir: absolute(deprecatedSockDir)}}
}

// absolute returns a path in its one form. Without a working directory a relative path stays, and is an error of Start.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil && path != "" {
		return abs
	}
	return path
}

// AddHandler makes handler the consumer of the plugins of a type. It may be called at any time: plugins that are waiting for it are
// registered at once. It panics if the handler is nil or the type is not one.
func (w *Watcher) AddHandler(pluginType string, handler PluginHandler) {
	if handler == nil {
		w.pipeline.AddHandler(pluginType, nil)
	}
	w.pipeline.AddHandler(pluginType, adapt(handler))
}

// RemoveHandler removes the handler of a type. Its plugins are deregistered.
func (w *Watcher) RemoveHandler(pluginType string) { w.pipeline.RemoveHandler(pluginType) }

// Plugins returns the status of the plugins and sockets that are known. It reports false while the Watcher does not run, and then knows
// none.
func (w *Watcher) Plugins() (plugins []plugin.Status, running bool) { return w.pipeline.Plugins() }

// Run is Start and, when ctx ends, Stop, except that it waits for handlers without a time limit. The errors are those of Start.
func (w *Watcher) Run(ctx context.Context) error { return w.pipeline.Run(ctx) }

// Start begins to watch, in the background, until [Watcher.Stop]. Plugins whose sockets are there already are found too. An error says
// that a plugin directory cannot be made or read, or that the watcher runs already.
func (w *Watcher) Start() error {
	w.lifecycle.Lock()
	defer w.lifecycle.Unlock()
	run, err := w.pipeline.Begin()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	w.stop = func() error {
		cancel()
		deadline := time.NewTimer(stopTimeout)
		defer deadline.Stop()
		select {
		case err := <-ended:
			return err
		case <-deadline.C:
			return fmt.Errorf("the plugin watcher has not ended after %v: a handler is still in a call (see Plugins)", stopTimeout)
		}
	}
	return nil
}

// Stop ends what Start began. Plugins are not deregistered: a later Start finds, validates and registers them again. It waits for
// handlers that are in a call, for at most 10 s, and returns an error if one still is; the watcher ends when that one returns. Stop
// without Start does nothing.
func (w *Watcher) Stop() error {
	w.lifecycle.Lock()
	defer w.lifecycle.Unlock()
	stop := w.stop
	w.stop = nil
	if stop == nil {
		return nil
	}
	return stop()
}

// PluginHandler is the consumer of one plugin type, in the form that also learns whether a plugin was found in the deprecated
// directory. The [Watcher] walks it through this state machine, strictly and sequentially for each plugin name:
//
//	Validate ──▶ Register ──▶ DeRegister
//	   ▲            │
//	   └────────────┘
//
// What is promised about these calls is said at cache.PluginHandler, which is the same consumer of the same pipeline and also
// learns of a configured timeout. A method may block: it holds up its own plugin name only.
//
// The interface is that of the kubelet's pluginwatcher of March 2019.
type PluginHandler interface {
	// ValidatePlugin returns an error if the information provided by the plugin is erroneous, for example if none of the
	// versions is supported. foundInDeprecatedDir says that its socket lies in the deprecated directory of [NewWatcher].
	ValidatePlugin(pluginName string, endpoint string, versions []string, foundInDeprecatedDir bool) error
	// RegisterPlugin starts using the plugin. The endpoint is the Unix socket on which the plugin's own services answer.
	// An error is told to the plugin.
	RegisterPlugin(pluginName, endpoint string, versions []string) error
	// DeRegisterPlugin ends the use of the plugin.
	DeRegisterPlugin(pluginName string)
}

// adapt makes a handler of the older kubelet interface one of the later.
func adapt(h PluginHandler) cache.PluginHandler {
	if registrar, ok := h.(cache.ContextRegistrar); ok {
		return contextAdapter{adapter{h}, registrar}
	}
	return adapter{h}
}

// contextAdapter is the adapter of a handler that registers with a context. One that does not must not seem to: its panic would be reported
// under a method that it does not have.
type contextAdapter struct {
	adapter
	cache.ContextRegistrar
}

// adapter passes on what every handler has.
type adapter struct{ PluginHandler }

func (a adapter) ValidatePlugin(pluginName, endpoint string, versions []string) error {
	return a.ValidatePluginInDir(pluginName, endpoint, versions, false)
}

func (a adapter) ValidatePluginInDir(pluginName, endpoint string, versions []string, foundInDeprecatedDir bool) error {
	return a.PluginHandler.ValidatePlugin(pluginName, endpoint, versions, foundInDeprecatedDir)
}

func (a adapter) RegisterPlugin(pluginName, endpoint string, versions []string, _ *time.Duration) error {
	return a.PluginHandler.RegisterPlugin(pluginName, endpoint, versions)
}

// KeepRegistration and InstanceGone pass on to a handler that has these powers.

func (a adapter) KeepRegistration(pluginName string, reason error) bool {
	h, ok := a.PluginHandler.(cache.RegistrationKeeper)
	return ok && h.KeepRegistration(pluginName, reason)
}

func (a adapter) InstanceGone(pluginName, endpoint string) {
	if h, ok := a.PluginHandler.(cache.InstanceGoneHandler); ok {
		h.InstanceGone(pluginName, endpoint)
	}
}

var (
	_ cache.DeprecatedDirValidator = adapter{}
	_ cache.InstanceGoneHandler    = adapter{}
	_ cache.ContextRegistrar       = contextAdapter{}
	_ cache.RegistrationKeeper     = adapter{}
)
