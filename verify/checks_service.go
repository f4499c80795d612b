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
		s.info(ctx)
		return check(ctx, s)
	}
}

// onEndpoint is answering for checks that need a connection to the plugin's endpoint.
func onEndpoint(check func(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome) func(context.Context, *subject) outcome {
	return answering(func(ctx context.Context, s *subject) outcome {
		conn, err := s.connect(ctx)
		assume(err == nil, "there is no endpoint to ask: %v", err)
		defer conn.Close()
		return check(ctx, s, conn)
	})
}

// connect returns a connection to the endpoint that the plugin announces.
func (s *subject) connect(ctx context.Context) (*grpc.ClientConn, error) {
	path, err := s.endpoint(s.info(ctx))
	if err != nil {
		return nil, err
	}
	return dial(path, s.options.CallTimeout, &s.trace)
}

const maxHealthChecked = 16

func checkHealth(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	client, health := grpc_health_v1.NewHealthClient(conn), grpc_health_v1.HealthCheckResponse_UNKNOWN
	serving := s.inTime(ctx, func() bool {
		answer, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		assumeReachable(err, "grpc.health.v1")
		expect(status.Code(err) != codes.NotFound, "the health service does not know the service \"\", the plugin as a whole")
		requireCall("Check", err)
		health = answer.Status
		return health == grpc_health_v1.HealthCheckResponse_SERVING
	})
	require(serving, "the health is still %v after %v", health, s.options.StartTimeout)
	// Clients may check a single service, so each that reflection lists has to be healthy, unless the health service does not know it.
	names, _ := s.reflected(ctx, conn) // another rule checks reflection
	for _, name := range names[:min(len(names), maxHealthChecked)] {
		answer, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: name})
		expect(err != nil || answer.Status == grpc_health_v1.HealthCheckResponse_SERVING,
			"the health is SERVING, but that of the service %s is %v", untrusted.Quote(name), answer.GetStatus())
	}
	return pass("the health is SERVING")
}

// assumeReachable ends the check as not applicable if the endpoint lacks a service or cannot be reached.
func assumeReachable(err error, service string) {
	assume(status.Code(err) != codes.Unimplemented, "the endpoint has no %s", service)
	assume(status.Code(err) != codes.Unavailable, "the endpoint cannot be reached")
}

func checkReflection(ctx context.Context, s *subject, conn *grpc.ClientConn) outcome {
	names, err := s.reflected(ctx, conn)
	assumeReachable(err, "reflection")
	requireCall("the list of services", err)
	own := slices.DeleteFunc(names, func(name string) bool {
		return strings.HasPrefix(name, "grpc.") || strings.HasPrefix(name, "pluginregistration.")
	})
	require(len(own) > 0, "the endpoint has no service but those for registration, health and reflection")
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
