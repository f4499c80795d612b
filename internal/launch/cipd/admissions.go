package cipd

import (
	"context"
	"strconv"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	cipdv1 "github.com/patchbay-dev/patchbay/api/patchbay/cipd/v1"
	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
)

// maxResolutions bounds the answers that wait to be read, and those that are read at once. A plugin that is faster waits.
const maxResolutions = 256

// Admissions is the service cipd.plugin.Admissions on top of patchbay.plugin.v1.Admissions, for one process: what a plugin asks and
// answers in many calls is one stream there. It is safe for concurrent use.
type Admissions struct {
	impl        pluginv1.AdmissionsServer
	resolutions chan *pluginv1.Resolution
	// ended is closed when nothing reads resolutions any more.
	ended  chan struct{}
	listed atomic.Bool
}

// NewAdmissions returns the service for one process.
func NewAdmissions(impl pluginv1.AdmissionsServer) *Admissions {
	return &Admissions{
		impl: impl, resolutions: make(chan *pluginv1.Resolution, maxResolutions), ended: make(chan struct{}),
	}
}

// listAdmissions is the stream. Both protocols have version 1, so that the implementation judges it.
func (a *Admissions) listAdmissions(r *cipdv1.ListAdmissionsRequest, stream grpc.ServerStream) error {
	if !a.listed.CompareAndSwap(false, true) {
		return status.Error(codes.FailedPrecondition, "admissions are listed already, or were; a process can list them once")
	}
	defer close(a.ended)
	hello := &pluginv1.Hello{ProtocolVersion: r.GetProtocolVersion(), PluginVersion: r.GetPluginVersion()}
	return a.impl.Admit(&admitStream{ServerStream: stream, admissions: a, hello: hello})
}

// resolveAdmission takes an answer. One to a check that is not open is ignored.
func (a *Admissions) resolveAdmission(ctx context.Context, r *cipdv1.ResolveAdmissionRequest) (*emptypb.Empty, error) {
	id, err := strconv.ParseUint(r.GetAdmissionId(), 10, 64)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "%.100q is no ID of an admission", r.GetAdmissionId())
	}
	if !a.listed.Load() {
		return nil, status.Error(codes.FailedPrecondition, "there is nothing to resolve before admissions are listed")
	}
	resolution := &pluginv1.Resolution{Id: id, Code: r.GetStatus().GetCode(), Message: r.GetStatus().GetMessage()}
	if err := a.resolve(ctx, resolution); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// resolve hands an answer on.
func (a *Admissions) resolve(ctx context.Context, r *pluginv1.Resolution) error {
	select {
	case a.resolutions <- r:
	case <-a.ended:
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	return nil
}

// admitStream makes one stream of the calls of a plugin.
type admitStream struct {
	grpc.ServerStream // of listAdmissions
	admissions        *Admissions
	hello             *pluginv1.Hello // until it is received
	admission         cipdv1.Admission
}

// Send sends checks to the plugin. One that cannot be put into its words is refused.
func (s *admitStream) Send(r *pluginv1.AdmitResponse) error {
	for _, check := range r.GetAdmissions() {
		instance, err := ParseInstanceID(check.GetPin().GetInstanceId())
		if err != nil {
			refused := &pluginv1.Resolution{Id: check.GetId(), Code: int32(codes.InvalidArgument), Message: err.Error()}
			if err := s.admissions.resolve(s.Context(), refused); err != nil {
				return err
			}
			continue
		}
		s.admission.AdmissionId = strconv.FormatUint(check.GetId(), 10)
		s.admission.ServiceUrl = check.GetServiceUrl()
		s.admission.Package = check.GetPin().GetPackageName()
		s.admission.Instance = instance
		if err := s.SendMsg(&s.admission); err != nil {
			return err
		}
	}
	return nil
}

// Recv returns the hello, and then answers, as many as there are.
func (s *admitStream) Recv() (*pluginv1.AdmitRequest, error) {
	if hello := s.hello; hello != nil {
		s.hello = nil
		return &pluginv1.AdmitRequest{Hello: hello}, nil
	}
	request := &pluginv1.AdmitRequest{}
	select {
	case r := <-s.admissions.resolutions:
		request.Resolutions = append(request.Resolutions, r)
	case <-s.Context().Done():
		return nil, status.FromContextError(s.Context().Err()).Err()
	}
	for len(request.Resolutions) < maxResolutions {
		select {
		case r := <-s.admissions.resolutions:
			request.Resolutions = append(request.Resolutions, r)
		default:
			return request, nil
		}
	}
	return request, nil
}
