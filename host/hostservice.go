package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/launch/cipd"
	"github.com/patchbay-dev/patchbay/internal/launch/output"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// maxAttributes bounds the attributes of one log record. Those above are dropped.
	maxAttributes = 64
	// maxPage and maxKeys bound one request for metadata.
	maxPage = 1000
	maxKeys = 100
)

type hostService struct {
	pluginv1.UnimplementedHostServer
	config plugin.Config
	logs   *output.Log
}

func (s *hostService) Log(stream pluginv1.Host_LogServer) error {
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&pluginv1.LogResponse{})
		}
		if err != nil {
			return err
		}
		for _, r := range request.GetRecords() {
			s.logs.Add(logRecord(r))
		}
	}
}

// logRecord translates a record. Its length and its characters are the log's business.
func logRecord(r *pluginv1.LogRecord) output.Record {
	record := output.Record{Level: slog.Level(r.GetLevel()), Message: r.GetMessage(), Source: output.RPC}
	if r.GetTime().IsValid() {
		record.Time = r.GetTime().AsTime()
	}
	attributes := r.GetAttributes()
	for _, a := range attributes[:min(len(attributes), maxAttributes)] {
		record.Attrs = append(record.Attrs, slog.Attr{Key: a.GetKey(), Value: logValue(a)})
	}
	return record
}

func logValue(a *pluginv1.Attribute) slog.Value {
	switch v := a.GetValue().(type) {
	case *pluginv1.Attribute_Text:
		return slog.StringValue(v.Text)
	case *pluginv1.Attribute_Integer:
		return slog.Int64Value(v.Integer)
	case *pluginv1.Attribute_Number:
		return slog.Float64Value(v.Number)
	case *pluginv1.Attribute_Truth:
		return slog.BoolValue(v.Truth)
	default:
		return slog.Value{}
	}
}

func (s *hostService) ListMetadata(
	ctx context.Context, r *pluginv1.ListMetadataRequest,
) (*pluginv1.ListMetadataResponse, error) {
	pin := plugin.Pin{PackageName: r.GetPin().GetPackageName(), InstanceID: r.GetPin().GetInstanceId()}
	switch {
	case r.GetServiceUrl() != "" && r.GetServiceUrl() != s.config.ServiceURL:
		return nil, status.Error(codes.PermissionDenied, "only the metadata of the package service that the host works with can be listed")
	case pin.PackageName == "" || pin.InstanceID == "":
		return nil, status.Error(codes.InvalidArgument, "the pin has no package name or no instance ID")
	case r.GetPageSize() < 0:
		return nil, status.Error(codes.InvalidArgument, "the page size is negative")
	case len(r.GetKeys()) > maxKeys:
		return nil, status.Errorf(codes.InvalidArgument, "more than %d keys", maxKeys)
	case s.config.Repository == nil:
		return nil, status.Error(codes.FailedPrecondition, "this host has no metadata of packages")
	}
	page := plugin.Page{Size: min(int(r.GetPageSize()), maxPage), Token: r.GetPageToken()}
	entries, next, err := s.config.Repository.ListMetadata(ctx, pin, r.GetKeys(), page)
	if err != nil {
		return nil, metadataError(err)
	}
	response := &pluginv1.ListMetadataResponse{NextPageToken: next}
	for _, m := range entries {
		entry := &pluginv1.Metadata{
			Key: m.Key, Value: m.Value, ContentType: m.ContentType, Fingerprint: m.Fingerprint, AttachedBy: m.AttachedBy,
		}
		if !m.AttachedAt.IsZero() {
			entry.AttachedTime = timestamppb.New(m.AttachedAt)
		}
		response.Metadata = append(response.Metadata, entry)
	}
	return response, nil
}

// metadataError passes on the gRPC status that the repository's error has, so that it can refuse a page token with
// InvalidArgument.
func metadataError(err error) error {
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return status.Errorf(codes.Internal, "list metadata: %v", err)
}

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
