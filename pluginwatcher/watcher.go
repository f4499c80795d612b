// Package pluginwatcher discovers plugins by their sockets in plugin directories and passes them to the handlers of their types:
// directories in, handler calls out.
//
// A plugin serves the kubelet's registration service (k8s.io/kubelet/pkg/apis/pluginregistration/v1) on a socket in a plugin directory or
// in any of its subdirectories. Names that start with a dot and files that are not sockets are ignored. When a socket appears, and at
// startup, the plugin is asked for its type and name, its handler validates and registers it, and the plugin is notified. When the socket
// is removed or stops accepting, the plugin is deregistered.
//
// [Watcher] and [PluginHandler] have the interface and the guarantees of the kubelet's pluginwatcher. Package patchbay runs the same
// pipeline; it is for hosts that also store and dispense plugins, or whose handlers implement the later kubelet interface,
// cache.PluginHandler. In addition, this package has an example plugin and an example handler.
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

// Watcher finds plugins and registers them with their handlers. Its methods are safe for concurrent use.
type Watcher struct {
	pipeline *pipeline.Watcher

	lifecycle sync.Mutex   // held during Start and Stop
	stop      func() error // set by Start
}

// NewWatcher returns a Watcher for a plugin directory and, if deprecatedSockDir is not empty, for a directory that only older plugins use.
// It does nothing before [Watcher.Start] or [Watcher.Run]. Relative paths are relative to the current working directory.
func NewWatcher(sockDir string, deprecatedSockDir string) *Watcher {
	return &Watcher{pipeline: &pipeline.Watcher{Dirs: []string{absolute(sockDir)}, DeprecatedDir: absolute(deprecatedSockDir)}}
}

// absolute returns the absolute and clean form of a path. If there is no working directory, it returns the path, for which Start then
// fails.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil && path != "" {
		return abs
	}
	return path
}

// AddHandler sets the handler for a plugin type. It may be called at any time: plugins that wait for a handler are registered immediately.
// It panics if the handler is nil or the type is invalid.
func (w *Watcher) AddHandler(pluginType string, handler PluginHandler) {
	if handler == nil {
		w.pipeline.AddHandler(pluginType, nil)
	}
	w.pipeline.AddHandler(pluginType, adapt(handler))
}

// RemoveHandler removes the handler for a plugin type. Its plugins are deregistered.
func (w *Watcher) RemoveHandler(pluginType string) { w.pipeline.RemoveHandler(pluginType) }

// Plugins returns the statuses of the known plugins and sockets. It returns none, and false, while the Watcher does not run.
func (w *Watcher) Plugins() (plugins []plugin.Status, running bool) { return w.pipeline.Plugins() }

// Run watches until ctx ends. It is like Start and Stop, except that it waits for handlers without a time limit. It returns the errors of
// Start.
func (w *Watcher) Run(ctx context.Context) error { return w.pipeline.Run(ctx) }

// Start begins to watch in the background, until [Watcher.Stop]. It also finds plugins whose sockets exist already. It returns an error if
// a plugin directory cannot be created or read, or the watcher is already running.
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

// Stop ends the watch that Start began. Plugins are not deregistered: a later Start finds, validates and registers them again. Stop waits
// for calls of handlers for at most 10 s. If one has not returned by then, Stop returns an error, and the watcher ends when it returns.
// Stop without Start does nothing.
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

// PluginHandler handles the plugins of one type. Unlike cache.PluginHandler, it also receives whether a plugin was found in the deprecated
// directory. The [Watcher] calls it in the order of this state machine, sequentially for each plugin name:
//
//	Validate ──▶ Register ──▶ DeRegister
//	   ▲            │
//	   └────────────┘
//
// The guarantees for these calls are those of cache.PluginHandler. A method may block; it only delays its own plugin name.
//
// The interface is that of the kubelet's pluginwatcher of March 2019.
type PluginHandler interface {
	// ValidatePlugin returns an error if the information provided by the plugin is erroneous, for example if none of the
	// versions is supported. foundInDeprecatedDir reports whether its socket is in the deprecated directory of [NewWatcher].
	ValidatePlugin(pluginName string, endpoint string, versions []string, foundInDeprecatedDir bool) error
	// RegisterPlugin starts using the plugin. The endpoint is the Unix socket of the plugin's own services. The plugin receives the error.
	RegisterPlugin(pluginName, endpoint string, versions []string) error
	// DeRegisterPlugin stops using the plugin.
	DeRegisterPlugin(pluginName string)
}

// adapt converts a handler of the older kubelet interface to the later one.
func adapt(h PluginHandler) cache.PluginHandler {
	if registrar, ok := h.(cache.ContextRegistrar); ok {
		return contextAdapter{adapter{h}, registrar}
	}
	return adapter{h}
}

// contextAdapter is the adapter for a handler with the method RegisterPluginContext. It is a type of its own because the pipeline calls
// that method whenever a handler has it.
type contextAdapter struct {
	adapter
	cache.ContextRegistrar
}

// adapter adapts any handler.
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

// KeepRegistration returns false if the handler does not implement it.
func (a adapter) KeepRegistration(pluginName string, reason error) bool {
	h, ok := a.PluginHandler.(cache.RegistrationKeeper)
	return ok && h.KeepRegistration(pluginName, reason)
}

// InstanceGone does nothing if the handler does not implement it.
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
