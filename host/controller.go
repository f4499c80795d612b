package host

import (
	"fmt"
	"reflect"

	"google.golang.org/grpc"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/launch/cipd"
)

// Controller says which services of the host one plugin may call, beside patchbay.plugin.v1.Host, or cipd.plugin.Host for a plugin of
// [ProtocolCIPD], which every plugin may. Their
// methods are called concurrently. They must return when the context of their call is done, which it is when the plugin has
// ended.
type Controller struct {
	// Admissions is set for admission plugins.
	Admissions pluginv1.AdmissionsServer
	// Services registers further gRPC services for this plugin. It is called once for each launch, before the process starts.
	Services func(grpc.ServiceRegistrar)
}

// services returns what the controller grants to a plugin with this protocol. A nil controller grants nothing.
func (c *Controller) services(protocol Protocol) (grants, error) {
	g := registrar{services: grants{}}
	switch {
	case c == nil || c.Admissions == nil:
	case protocol == ProtocolCIPD:
		g.RegisterService(&cipd.AdmissionsDesc, cipd.NewAdmissions(c.Admissions))
	default:
		g.RegisterService(&pluginv1.Admissions_ServiceDesc, c.Admissions)
	}
	if c != nil && c.Services != nil {
		c.Services(&g)
	}
	return g.services, g.err
}

// grants are the services that one plugin may call, by their full names.
type grants map[string]service

type service struct {
	desc *grpc.ServiceDesc
	impl any
}

// registrar records services. It is a grpc.ServiceRegistrar.
type registrar struct {
	services grants
	err      error // the first
}

// RegisterService records a service. A mistake is kept for the launch, which fails with it.
func (r *registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	_, twice := r.services[desc.ServiceName]
	wanted := reflect.TypeOf(desc.HandlerType)
	switch {
	case r.err != nil:
	case twice || desc.ServiceName == pluginv1.Host_ServiceDesc.ServiceName || desc.ServiceName == cipd.HostDesc.ServiceName:
		r.err = fmt.Errorf("the controller grants the service %s twice", desc.ServiceName)
	case impl == nil || wanted != nil && !reflect.TypeOf(impl).Implements(wanted.Elem()):
		r.err = fmt.Errorf("the controller grants the service %s with a %T, which does not implement it", desc.ServiceName, impl)
	default:
		r.services[desc.ServiceName] = service{desc, impl}
	}
}
