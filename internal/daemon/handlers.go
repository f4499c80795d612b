package daemon

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins/boltstate"
	"github.com/patchbay-dev/patchbay/handlers/csi"
	"github.com/patchbay-dev/patchbay/handlers/device"
	"github.com/patchbay-dev/patchbay/handlers/dra"
	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// The kinds of handlers determine what a daemon does with plugins of a type.
const (
	// HandlerAccept accepts every plugin and does nothing else; see [patchbay.AcceptHandler].
	HandlerAccept = "accept"
	// HandlerCSI starts using CSI drivers; see package handlers/csi.
	HandlerCSI = "csi"
	// HandlerDevice starts using device plugins and allocates their devices; see package handlers/device. It can only handle the type
	// DevicePlugin.
	HandlerDevice = "device"
	// HandlerDRA starts using DRA drivers; see package handlers/dra.
	HandlerDRA = "dra"
)

// HandlerKinds returns all kinds, sorted.
func HandlerKinds() []string { return slices.Sorted(maps.Keys(newHandlers)) }

var newHandlers = map[string]func(*handlerSet) (cache.PluginHandler, error){
	HandlerAccept: func(*handlerSet) (cache.PluginHandler, error) { return patchbay.AcceptHandler(), nil },
	HandlerCSI:    func(*handlerSet) (cache.PluginHandler, error) { return csi.NewHandler(csi.Options{}), nil },
	HandlerDevice: newDeviceHandler,
	HandlerDRA:    func(s *handlerSet) (cache.PluginHandler, error) { return &dra.Handler{Logger: s.log}, nil },
}

// kubeletKinds are the kinds of handlers for the plugin types of the kubelet. Each kind supports only the protocol of its type.
var kubeletKinds = map[string]string{
	registerapi.CSIPlugin: HandlerCSI, registerapi.DevicePlugin: HandlerDevice, registerapi.DRAPlugin: HandlerDRA,
}

// DefaultTypes are the plugin types that every daemon accepts, sorted.
func DefaultTypes() []string { return slices.Sorted(maps.Keys(kubeletKinds)) }

// handlerSet has the handlers of a running daemon. Unused handlers are closed if they implement io.Closer.
type handlerSet struct {
	log *slog.Logger
	// state is the daemon's state file, in which handlers may save data.
	state *boltstate.Store
	// pluginDir is the first plugin directory, deviceSocketDir is Config.Device.SocketDir.
	pluginDir, deviceSocketDir string

	mu     sync.Mutex
	byType map[string]cache.PluginHandler
}

// changes creates handlers for types whose kind of handler is new, and returns them together with the types that no longer have a handler.
// It does not change the set.
func (s *handlerSet) changes(was, is map[string]string) (added map[string]cache.PluginHandler, removed []string, err error) {
	added = map[string]cache.PluginHandler{}
	for ptype, kind := range is {
		if was[ptype] == kind {
			continue
		}
		h, err := newHandlers[kind](s)
		// gofail: var daemonHandler string
		// h, err = nil, errors.New(daemonHandler)
		if err != nil {
			err = fmt.Errorf("cannot create the %s handler of plugin type %s: %w", kind, ptype, err)
			return nil, nil, errors.Join(err, closeHandlers(added))
		}
		added[ptype] = h
	}
	for ptype := range was {
		if _, has := is[ptype]; !has {
			removed = append(removed, ptype)
		}
	}
	return added, removed, nil
}

// use sets the handler of a type, or removes it if h is nil, and returns the previous handler or nil.
func (s *handlerSet) use(ptype string, h cache.PluginHandler) (before cache.PluginHandler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byType == nil {
		s.byType = map[string]cache.PluginHandler{}
	}
	before = s.byType[ptype]
	if h == nil {
		delete(s.byType, ptype)
	} else {
		s.byType[ptype] = h
	}
	return before
}

// Has reports whether a plugin type has a handler.
func (s *handlerSet) Has(ptype string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byType[ptype] != nil
}

// All returns the handlers by plugin type.
func (s *handlerSet) All() map[string]cache.PluginHandler {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.byType)
}

func (s *handlerSet) close() error { return closeHandlers(s.All()) }

// closeHandlers closes handlers that implement io.Closer. After a reload, their plugins may still be being deregistered.
func closeHandlers(handlers map[string]cache.PluginHandler) error {
	var errs []error
	for _, h := range handlers {
		if c, ok := h.(io.Closer); ok {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// handlerKinds returns the kind of handler of every type that has one.
func handlerKinds(c *config.Config) map[string]string {
	all := map[string]string{}
	for _, ptype := range DefaultTypes() {
		all[ptype] = HandlerAccept
	}
	maps.Copy(all, c.Handlers)
	return all
}

func validateHandler(ptype, kind string) error {
	if err := untrusted.CheckType(ptype); err != nil {
		return err
	}
	if newHandlers[kind] == nil {
		return fmt.Errorf("plugin type %s cannot have a handler of kind %q: the kinds that exist are %s", ptype, kind,
			strings.Join(HandlerKinds(), ", "))
	}
	if own, known := kubeletKinds[ptype]; kind != HandlerAccept && kind != own && (known || kind == HandlerDevice) {
		for made, its := range kubeletKinds {
			if its == kind {
				return fmt.Errorf("plugin type %s cannot have a handler of kind %s: that is for the type %s", ptype, kind, made)
			}
		}
	}
	return nil
}

// newDeviceHandler makes the handler of device plugins. It creates sockets in the first plugin directory for plugins that register with the
// older protocol.
func newDeviceHandler(s *handlerSet) (cache.PluginHandler, error) {
	h := &device.Handler{
		Store:     s.state.Bucket(HandlerDevice),
		SocketDir: s.deviceSocketDir,
		PluginDir: s.pluginDir,
		Logger:    s.log,
	}
	if err := h.Open(); err != nil {
		return nil, server.AdviseOnPath(err, "directory with device.socketDir")
	}
	return h, nil
}

func checkDeviceSocketDir(c *config.Config) error {
	if c.Device.SocketDir == "" || !slices.Contains(slices.Collect(maps.Values(c.Handlers)), HandlerDevice) {
		return nil
	}
	if err := checkApart(c, "the directory of kubelet.sock", c.Device.SocketDir); err != nil || len(c.PluginDirs) == 0 {
		return err
	}
	return device.CheckDirs(c.Device.SocketDir, c.PluginDirs[0])
}
