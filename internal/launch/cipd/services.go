// Package cipd speaks the wire of the CIPD plugin system to a plugin that was launched by a host: the handshake, the two services that
// such a plugin calls, and the names that both have for the content of a package. The services do nothing themselves; they translate to
// those of api/patchbay/plugin/v1, so that an admission plugin of CIPD and one of Patchbay are treated alike.
//
// It does not listen and does not know tickets: that is the business of package host.
package cipd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	cipdv1 "github.com/patchbay-dev/patchbay/api/patchbay/cipd/v1"
	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
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

// TicketKey is the gRPC metadata that carries the ticket with each call.
const TicketKey = "x-plugin-ticket"

// handshake has no other fields: plugins refuse those that they do not know.
type handshake struct {
	Port   int    `json:"port"`
	Ticket string `json:"ticket"`
}

// WriteHandshake writes the line that a plugin reads from its standard input. The host listens on this TCP port of 127.0.0.1.
func WriteHandshake(w io.Writer, port int, ticket string) error {
	line, err := json.Marshal(handshake{port, ticket})
	if err != nil {
		return err
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("cannot hand the plugin its ticket: %w", err)
	}
	return nil
}

// Host is the service cipd.plugin.Host on top of patchbay.plugin.v1.Host. It is safe for concurrent use.
type Host struct {
	impl       pluginv1.HostServer
	serviceURL string
}

// NewHost returns the service for a host that works with this package service.
func NewHost(impl pluginv1.HostServer, serviceURL string) *Host {
	return &Host{impl, serviceURL}
}

// severities are the levels of what a plugin logs. Others are those of information.
var severities = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warning": slog.LevelWarn, "error": slog.LevelError,
}

func (h *Host) log(ctx context.Context, r *cipdv1.LogRequest) (*emptypb.Empty, error) {
	record := &pluginv1.LogRecord{Level: int32(severities[r.GetSeverity()]), Message: r.GetMessage()}
	if err := h.impl.Log(&logStream{record: record, context: func() context.Context { return ctx }}); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

func (h *Host) listMetadata(ctx context.Context, r *cipdv1.ListMetadataRequest) (*cipdv1.ListMetadataResponse, error) {
	if r.GetServiceUrl() != h.serviceURL {
		return nil, status.Errorf(codes.PermissionDenied,
			"only the metadata of %s can be listed, with which the host works", h.serviceURL)
	}
	id, err := InstanceID(r.GetInstance())
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the instance is named by %v", err)
	}
	listed, err := h.impl.ListMetadata(ctx, &pluginv1.ListMetadataRequest{
		ServiceUrl: r.GetServiceUrl(), Pin: &pluginv1.Pin{PackageName: r.GetPackage(), InstanceId: id},
		Keys: r.GetKeys(), PageSize: r.GetPageSize(), PageToken: r.GetPageToken(),
	})
	if err != nil {
		return nil, err
	}
	response := &cipdv1.ListMetadataResponse{NextPageToken: listed.GetNextPageToken()}
	for _, m := range listed.GetMetadata() {
		response.Metadata = append(response.Metadata, &cipdv1.InstanceMetadata{
			Key: m.GetKey(), Value: m.GetValue(), ContentType: m.GetContentType(), Fingerprint: m.GetFingerprint(),
			AttachedBy: m.GetAttachedBy(), AttachedTs: m.GetAttachedTime(),
		})
	}
	return response, nil
}

// logStream is a stream of one record, in place of one to a plugin.
type logStream struct {
	grpc.ServerStream // nil: a log has no headers
	record            *pluginv1.LogRecord
	context           func() context.Context
}

func (s *logStream) Context() context.Context { return s.context() }

func (s *logStream) Recv() (*pluginv1.LogRequest, error) {
	if s.record == nil {
		return nil, io.EOF
	}
	request := &pluginv1.LogRequest{Records: []*pluginv1.LogRecord{s.record}}
	s.record = nil
	return request, nil
}

func (s *logStream) SendAndClose(*pluginv1.LogResponse) error { return nil }
