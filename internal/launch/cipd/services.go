package cipd

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	cipdv1 "github.com/patchbay-dev/patchbay/api/patchbay/cipd/v1"
)

// hostServer is the service that every plugin may call.
type hostServer interface {
	log(context.Context, *cipdv1.LogRequest) (*emptypb.Empty, error)
	listMetadata(context.Context, *cipdv1.ListMetadataRequest) (*cipdv1.ListMetadataResponse, error)
}

// admissionsServer is the service that admission plugins may call.
type admissionsServer interface {
	listAdmissions(*cipdv1.ListAdmissionsRequest, grpc.ServerStream) error
	resolveAdmission(context.Context, *cipdv1.ResolveAdmissionRequest) (*emptypb.Empty, error)
}

// HostDesc describes the service cipd.plugin.Host, which [Host] implements.
var HostDesc = grpc.ServiceDesc{
	ServiceName: "cipd.plugin.Host",
	HandlerType: (*hostServer)(nil),
	Methods: []grpc.MethodDesc{
		unary("Log", hostServer.log),
		unary("ListMetadata", hostServer.listMetadata),
	},
}

// AdmissionsDesc describes the service cipd.plugin.Admissions, which [Admissions] implements.
var AdmissionsDesc = grpc.ServiceDesc{
	ServiceName: "cipd.plugin.Admissions",
	HandlerType: (*admissionsServer)(nil),
	Methods:     []grpc.MethodDesc{unary("ResolveAdmission", admissionsServer.resolveAdmission)},
	Streams: []grpc.StreamDesc{{
		StreamName:    "ListAdmissions",
		ServerStreams: true,
		Handler: func(impl any, stream grpc.ServerStream) error {
			request := new(cipdv1.ListAdmissionsRequest)
			if err := stream.RecvMsg(request); err != nil {
				return err
			}
			return impl.(admissionsServer).listAdmissions(request, stream) //nolint:forcetypeassert,errcheck // HandlerType says so
		},
	}},
}

// unary describes a method with one request and one response. The services have no interceptors.
func unary[Service, Request, Response any](
	name string, call func(Service, context.Context, *Request) (Response, error),
) grpc.MethodDesc {
	return grpc.MethodDesc{
		MethodName: name,
		Handler: func(impl any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			request := new(Request)
			if err := decode(request); err != nil {
				return nil, err
			}
			return call(impl.(Service), ctx, request) //nolint:forcetypeassert,errcheck // HandlerType says so
		},
	}
}
