// Package csi is for CSI drivers (plugin type CSIPlugin): a handler that registers drivers as the kubelet does, and dispensers of typed CSI
// clients.
//
// [Handler] negotiates the version, waits until the driver is ready, checks that its name is the announced one, and asks for its
// capabilities and its information about this node. The registry stores the result with the instance; read it with [NodeInfoOf],
// [KeyVersion] and [KeyCapabilities]. A driver with a Node service is also registered as csi-node, and a driver with a controller as
// csi-controller.
//
// [Dispensers] make DispensePlugin hand out clients of the three CSI services. They also work without the handler.
//
// The package neither discovers nor starts drivers, and calls no method that changes anything: volumes are up to the client's users. CSI
// here is version 1 of the Container Storage Interface, https://github.com/container-storage-interface/spec.
package csi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// Options say how a [Handler] asks drivers. The zero value works.
type Options struct {
	// CallTimeout bounds one call to a driver for which no client timeout is configured (default 15 s).
	CallTimeout time.Duration
	// ReadyTimeout is how long one registration waits for a driver that is not ready, or whose calls fail (default 30 s). After that it
	// fails, with an error that wraps [cache.ErrRetry] if the driver is not ready, and then the pipeline retries later.
	ReadyTimeout time.Duration
}

const (
	defaultCallTimeout  = 15 * time.Second
	defaultReadyTimeout = 30 * time.Second
)

// Handler is a [cache.PluginHandler] for CSI drivers. It has no state of its own: the registry stores the results of a registration with
// the instance. Its methods are safe for concurrent use.
type Handler struct {
	callTimeout, readyTimeout time.Duration
}

var (
	_ cache.PluginHandler          = (*Handler)(nil)
	_ cache.ContextRegistrar       = (*Handler)(nil)
	_ cache.DeprecatedDirValidator = (*Handler)(nil)
)

// NewHandler returns a handler for the plugin type CSIPlugin. It panics if a timeout is negative.
func NewHandler(options Options) *Handler {
	if min(options.CallTimeout, options.ReadyTimeout) < 0 {
		panic("csi: a timeout of Options is negative; use 0 for the default")
	}
	return &Handler{
		callTimeout:  cmp.Or(options.CallTimeout, defaultCallTimeout),
		readyTimeout: cmp.Or(options.ReadyTimeout, defaultReadyTimeout),
	}
}

// Roles returns the roles that a driver may have.
func (*Handler) Roles() []string {
	return []string{dynamicplugins.PluginTypeCSIController, dynamicplugins.PluginTypeCSINode}
}

// ValidatePlugin checks the name of a driver and that one of its versions is supported, which is any 1.x. The pipeline sends the error to
// the driver.
func (h *Handler) ValidatePlugin(pluginName, _ string, versions []string) error {
	if err := untrusted.PluginName(registerapi.CSIPlugin, pluginName); err != nil {
		return err
	}
	if _, err := negotiate(versions); err != nil {
		return fmt.Errorf("cannot use CSI driver %s: %w", pluginName, err)
	}
	return nil
}

// ValidatePluginInDir is like ValidatePlugin. A driver in the deprecated plugin directory must announce a version 0.x in addition, as the
// kubelet required while it had such a directory; other drivers belong in a plugin directory. It fails as ValidatePlugin does, and if there
// is no such version.
func (h *Handler) ValidatePluginInDir(pluginName, endpointPath string, versions []string, foundInDeprecatedDir bool) error {
	if err := h.ValidatePlugin(pluginName, endpointPath, versions); err != nil {
		return err
	}
	if foundInDeprecatedDir && !announcesZero(versions) {
		return fmt.Errorf("cannot use CSI driver %s: it was found in the deprecated plugin directory, and announces no CSI version 0.x; "+
			"have it make its registration socket in a plugin directory", pluginName)
	}
	return nil
}

// RegisterPlugin is RegisterPluginContext without a context and without a registration, for callers other than the pipeline. It fails for
// the same reasons.
func (h *Handler) RegisterPlugin(pluginName, endpointPath string, versions []string, pluginClientTimeout *time.Duration) error {
	_, err := h.RegisterPluginContext(context.Background(), pluginName, endpointPath, versions, pluginClientTimeout)
	return err
}

// RegisterPluginContext blocks until the driver is ready and has described itself, at most for [Options].ReadyTimeout and five calls.
// pluginClientTimeout, or else [Options].CallTimeout, bounds each call.
//
// The error wraps [cache.ErrRetry] if the driver does not answer, is not ready, or cannot answer yet. Other errors describe a problem of
// the driver.
func (h *Handler) RegisterPluginContext(
	ctx context.Context, pluginName, endpointPath string, versions []string, pluginClientTimeout *time.Duration,
) (plugin.Registration, error) {
	registration, err := h.register(ctx, pluginName, endpointPath, versions, pluginClientTimeout)
	if err != nil {
		return plugin.Registration{}, fmt.Errorf("cannot use CSI driver %s at %s: %w", untrusted.Clip(pluginName), endpointPath, err)
	}
	return registration, nil
}

func (h *Handler) register(
	ctx context.Context, name, path string, versions []string, clientTimeout *time.Duration,
) (registration plugin.Registration, err error) {
	if err := untrusted.PluginName(registerapi.CSIPlugin, name); err != nil {
		return plugin.Registration{}, err
	}
	version, err := negotiate(versions)
	if err != nil {
		return plugin.Registration{}, err
	}
	conn, err := endpoint.Dial(ctx, path, grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(maxAnswer))
	if err != nil {
		return plugin.Registration{}, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	d := driver{
		identity: csipb.NewIdentityClient(conn), node: csipb.NewNodeClient(conn), callTimeout: endpoint.Timeout(clientTimeout, h.callTimeout),
	}
	registration, err = d.await(ctx, h.readyTimeout, name, version)
	if errors.Is(err, cache.ErrRetry) {
		// A call that waits for a connection does not always say why there is none.
		if connectErr := endpoint.Probe(ctx, path); connectErr != nil {
			err = fmt.Errorf("%w; %w", err, connectErr)
		}
	}
	return registration, err
}

// DeRegisterPlugin does nothing.
func (h *Handler) DeRegisterPlugin(string) {}
