package verify

import (
	"context"
	"errors"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/foreign"
)

func serviceRules() []Rule {
	return []Rule{
		{
			ID: "SVC001", Title: "The health service, if there is one, says SERVING",
			Why:    "Hosts that find grpc.health.v1 on the endpoint believe it, and restart or pass over a plugin that is not well.",
			Remedy: "set the status of the service \"\" to SERVING when the plugin is ready, before it makes its registration socket",
			check:  checkHealth,
		},
		{
			ID: "SVC002", Title: "Reflection, if there is any, shows a service of the plugin",
			Why:    "A plugin whose endpoint offers nothing but registration is registered and of no use.",
			Remedy: "register the plugin's own services on the server at the endpoint before reflection, or announce the endpoint that has them",
			check:  checkReflection,
		},
	}
}

// onEndpoint calls fn with a connection to the plugin's endpoint.
func (s *subject) onEndpoint(ctx context.Context, fn func(info *registerapi.PluginInfo, conn *grpc.ClientConn) outcome) outcome {
	info, o := s.info(ctx)
	if info == nil {
		return o
	}
	path, err := s.endpoint(info)
	if err != nil {
		return notApplicable("there is no endpoint to ask: %v", err)
	}
	conn, err := s.dial(path)
	if err != nil {
		return fail("%v", err)
	}
	defer conn.Close()
	return fn(info, conn)
}

func checkHealth(ctx context.Context, s *subject) outcome {
	return s.onEndpoint(ctx, func(_ *registerapi.PluginInfo, conn *grpc.ClientConn) outcome {
		answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		switch {
		case status.Code(err) == codes.Unimplemented:
			return notApplicable("the endpoint has no grpc.health.v1")
		case status.Code(err) == codes.Unavailable:
			return notApplicable("the endpoint cannot be reached")
		case status.Code(err) == codes.NotFound:
			return warn("the health service knows nothing of the service \"\", the plugin as a whole")
		case err != nil:
			return fail("Check %s", brief(err))
		case answer.Status != grpc_health_v1.HealthCheckResponse_SERVING:
			return fail("the health is %v", answer.Status)
		}
		return s.checkHealthOfServices(ctx, conn)
	})
}

// maxHealthChecked bounds for how many services the health is asked.
const maxHealthChecked = 16

// checkHealthOfServices asks for the health of each service that reflection shows, which clients may ask for instead of that of the whole.
// A service that the health service does not know is none that it speaks for.
func (s *subject) checkHealthOfServices(ctx context.Context, conn *grpc.ClientConn) outcome {
	names, err := s.reflected(ctx, conn)
	if err != nil {
		names = nil // whether there is reflection is for another rule
	}
	for _, name := range names[:min(len(names), maxHealthChecked)] {
		answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: name})
		if err == nil && answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
			return warn("the health is SERVING, but that of the service %s is %v", foreign.Quote(name), answer.Status)
		}
	}
	return pass("the health is SERVING")
}

func checkReflection(ctx context.Context, s *subject) outcome {
	return s.onEndpoint(ctx, func(_ *registerapi.PluginInfo, conn *grpc.ClientConn) outcome {
		names, err := s.reflected(ctx, conn)
		switch {
		case status.Code(err) == codes.Unimplemented:
			return notApplicable("the endpoint has no reflection")
		case status.Code(err) == codes.Unavailable:
			return notApplicable("the endpoint cannot be reached")
		case err != nil:
			return fail("the list of services %s", brief(err))
		}
		own := slices.DeleteFunc(names, func(name string) bool {
			return strings.HasPrefix(name, "grpc.") || strings.HasPrefix(name, "pluginregistration.")
		})
		if len(own) == 0 {
			return fail("the endpoint has no service but those for registration, health and reflection")
		}
		return pass("the endpoint has %s", foreign.QuoteAll(own))
	})
}

// reflected returns the names of the services.
func (s *subject) reflected(ctx context.Context, conn *grpc.ClientConn) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.CallTimeout)
	defer cancel()
	request := &grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
	}
	answer, err := func() (*grpc_reflection_v1.ServerReflectionResponse, error) {
		stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
		if err != nil {
			return nil, err
		}
		if err := stream.Send(request); err != nil {
			_, err = stream.Recv() // which says why
			return nil, err
		}
		return stream.Recv()
	}()
	s.trace.addCall(grpc_reflection_v1.ServerReflection_ServerReflectionInfo_FullMethodName, request, answer, err)
	if err != nil {
		return nil, err
	}
	list := answer.GetListServicesResponse()
	if list == nil {
		return nil, errors.New("was answered with something else")
	}
	var names []string
	for _, service := range list.Service {
		names = append(names, service.Name)
	}
	return names, nil
}
