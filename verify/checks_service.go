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

	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// answering returns a check that first calls GetInfo, unless that was done, and runs only if the plugin answers. The answer is in s.asked.
func answering(check func(ctx context.Context, s *subject) outcome) func(context.Context, *subject) outcome {
	return func(ctx context.Context, s *subject) outcome {
		if _, o := s.info(ctx); o.status != "" {
			return o
		}
		return check(ctx, s)
	}
}

// onEndpoint is answering for checks that need a connection to the plugin's endpoint.
func onEndpoint(check func(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome) func(context.Context, *subject) outcome {
	return answering(func(ctx context.Context, s *subject) outcome {
		path, err := s.endpoint(s.asked.info)
		if err != nil {
			return notApplicable("there is no endpoint to ask: %v", err)
		}
		conn, err := dial(path, s.options.CallTimeout, &s.trace)
		if err != nil {
			return fail("%v", err)
		}
		defer conn.Close()
		return check(ctx, s, conn)
	})
}

func checkHealth(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	return s.inTime(ctx, func() (bool, outcome) {
		answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		switch {
		case status.Code(err) == codes.Unimplemented:
			return true, notApplicable("the endpoint has no grpc.health.v1")
		case status.Code(err) == codes.Unavailable:
			return true, notApplicable("the endpoint cannot be reached")
		case status.Code(err) == codes.NotFound:
			return true, warn("the health service does not know the service \"\", the plugin as a whole")
		case err != nil:
			return true, fail("Check %s", brief(err))
		case answer.Status != grpc_health_v1.HealthCheckResponse_SERVING:
			return false, fail("the health is still %v after %v", answer.Status, s.options.StartTimeout)
		}
		return true, s.checkHealthOfServices(ctx, conn)
	})
}

const maxHealthChecked = 16

// checkHealthOfServices checks the health of each service that reflection lists, since clients may check a single service. It ignores
// services that the health service does not know.
func (s *subject) checkHealthOfServices(ctx context.Context, conn *grpc.ClientConn) outcome {
	names, err := s.reflected(ctx, conn)
	if err != nil {
		names = nil // another rule checks reflection
	}
	for _, name := range names[:min(len(names), maxHealthChecked)] {
		answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: name})
		if err == nil && answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
			return warn("the health is SERVING, but that of the service %s is %v", untrusted.Quote(name), answer.Status)
		}
	}
	return pass("the health is SERVING")
}

func checkReflection(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
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
	return pass("the endpoint has %s", untrusted.QuoteAll(own))
}

func (s *subject) reflected(ctx context.Context, conn *grpc.ClientConn) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.options.CallTimeout)
	defer cancel()
	request := &grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}}
	var answer *grpc_reflection_v1.ServerReflectionResponse
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err == nil {
		_ = stream.Send(request) // Recv says why it failed
		answer, err = stream.Recv()
	}
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
