package dra

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/dynamicplugins"
	"github.com/patchbay-dev/patchbay/handlers/internal/endpoint"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// Timeouts returns the timeout for calls to a plugin, by its type and its name; nil for the default of 45 s. It is the form of
// ClientTimeout in the configuration of a patchbay.Runtime. It must be safe for concurrent use, and may be nil.
type Timeouts func(pluginType, pluginName string) *time.Duration

// Dispensers returns the registry's options with which DispensePlugin hands out a DRAPluginClient of k8s.io/kubelet/pkg/apis/dra/v1 for
// the plugin type DRAPlugin, on the connection that all callers of a plugin share. It is one for drivers of v1 and of v1beta1. The timeout
// of a driver bounds every call of it. It repeats nothing and checks nothing, and does not keep calls for one claim apart: that is what
// [Handler] does.
func Dispensers(timeouts Timeouts) []dynamicplugins.Option {
	dispenser := func(info *dynamicplugins.PluginInfo, conn grpc.ClientConnInterface) (any, error) {
		bounded := endpoint.Bounded(conn, func() time.Duration {
			if timeouts == nil {
				return defaultCallTimeout
			}
			return endpoint.Timeout(timeouts(registerapi.DRAPlugin, info.Name), defaultCallTimeout)
		})
		// The driver behind a shared connection may have been replaced by one of another version, so both are tried.
		if info.Options[KeyService] == serviceV1beta1 {
			return newClient(bounded, serviceV1beta1, serviceV1), nil
		}
		return newClient(bounded, serviceV1, serviceV1beta1), nil
	}
	return []dynamicplugins.Option{dynamicplugins.WithConnDispenser(registerapi.DRAPlugin, dispenser)}
}

// newClient returns a client for the first of the services that the driver implements.
func newClient(conn grpc.ClientConnInterface, services ...string) drav1.DRAPluginClient {
	return drav1.NewDRAPluginClient(versionedConn{conn, services})
}

// versionedConn calls services of several versions with the messages of v1. Those of v1beta1 are the same on the wire, except that a device
// has no share ID there.
type versionedConn struct {
	grpc.ClientConnInterface
	services []string
}

func (c versionedConn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) (err error) {
	for _, service := range c.services {
		err = c.ClientConnInterface.Invoke(ctx, "/k8s.io.kubelet.pkg.apis.dra."+service+"/"+path.Base(method), args, reply, opts...)
		if prepared, ok := reply.(*drav1.NodePrepareResourcesResponse); ok && service == serviceV1beta1 {
			dropShareIDs(prepared)
		}
		if status.Code(err) != codes.Unimplemented {
			return err
		}
	}
	return err
}

func dropShareIDs(prepared *drav1.NodePrepareResourcesResponse) {
	for _, claim := range prepared.GetClaims() {
		for _, device := range claim.GetDevices() {
			if device != nil {
				device.ShareId = nil
			}
		}
	}
}

// What drivers announce as their versions are the names of their services.
const (
	serviceV1      = drav1.DRAPluginService
	serviceV1beta1 = "v1beta1.DRAPlugin"
)

// services are the supported services for claims, newest first.
var services = []string{serviceV1, serviceV1beta1}

// healthServices are the supported services for health, newest first. Their messages are the same but for the name of their package, so
// those of v1alpha1 do for both.
var healthServices = []string{"v1.DRAResourceHealth", drahealth.DRAResourceHealth_ServiceDesc.ServiceName}

// newest returns the first of the supported services that is announced; empty if none is.
func newest(supported, announced []string) string {
	for _, service := range supported {
		if slices.Contains(announced, service) {
			return service
		}
	}
	return ""
}

// negotiate returns the newest supported service for claims among the announced ones: v1.DRAPlugin or v1beta1.DRAPlugin. It ignores unknown
// services. The error lists the announced and the supported services.
func negotiate(announced []string) (string, error) {
	if service := newest(services, announced); service != "" {
		return service, nil
	}
	if len(announced) == 0 {
		return "", fmt.Errorf("no gRPC services were announced; announce one of %s as version", strings.Join(services, ", "))
	}
	return "", fmt.Errorf("none of the announced gRPC services %s is supported; announce one of %s as version",
		untrusted.QuoteAll(announced), strings.Join(services, ", "))
}
