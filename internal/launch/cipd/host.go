package cipd

import (
	"context"
	"io"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	cipdv1 "github.com/patchbay-dev/patchbay/api/patchbay/cipd/v1"
	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
)

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
