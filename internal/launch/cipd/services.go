// Package cipd implements the host's side of CIPD's plugin protocol: the handshake, the two services that such a plugin calls, and the IDs
// of package instances. The services translate their calls to the services of api/patchbay/plugin/v1, so that admission plugins of CIPD and
// of Patchbay are treated alike.
//
// It does not listen and does not check tickets; package host does.
package cipd

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	cipdv1 "github.com/patchbay-dev/patchbay/api/patchbay/cipd/v1"
	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/regular"
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

// TicketKey is the gRPC metadata key of the ticket, which the plugin sends with each call.
const TicketKey = "x-plugin-ticket"

// handshake must have no other fields, because plugins refuse unknown ones.
type handshake struct {
	Port   int    `json:"port"`
	Ticket string `json:"ticket"`
}

// WriteHandshake writes the line that a plugin reads from its standard input. The host listens on port of 127.0.0.1.
func WriteHandshake(w io.Writer, port int, ticket string) error {
	line, err := json.Marshal(handshake{port, ticket})
	if err != nil {
		return err
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("cannot give the plugin its ticket: %w", err)
	}
	return nil
}

// Scan reports whether a program contains the names of Patchbay's services or, if it does not, of CIPD's. It is necessary because a plugin
// of CIPD does not report an unknown handshake before its standard input ends.
func Scan(program string) (isPatchbay, isCIPD bool) {
	const own = "patchbay.plugin.v1."
	file, err := regular.Open(program)
	if err != nil {
		return false, false
	}
	defer file.Close()
	content := bufio.NewReaderSize(file, 64<<10)
	for err == nil {
		var part []byte
		part, err = content.Peek(content.Size())
		if bytes.Contains(part, []byte(own)) {
			return true, false
		}
		isCIPD = isCIPD || bytes.Contains(part, []byte(HostDesc.ServiceName))
		_, _ = content.Discard(len(part) - len(HostDesc.ServiceName) - len(own)) // a name may cross the end of the part
	}
	return false, isCIPD
}

// Host is the service cipd.plugin.Host on top of patchbay.plugin.v1.Host. It is safe for concurrent use.
type Host struct {
	impl       pluginv1.HostServer
	serviceURL string
}

// NewHost returns the service for a host of packages of the package service at serviceURL.
func NewHost(impl pluginv1.HostServer, serviceURL string) *Host {
	return &Host{impl, serviceURL}
}

// severities maps the severities of a plugin's log to levels. Unknown ones are mapped to slog.LevelInfo.
var severities = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warning": slog.LevelWarn, "error": slog.LevelError,
}

func (h *Host) log(ctx context.Context, r *cipdv1.LogRequest) (*emptypb.Empty, error) {
	record := &pluginv1.LogRecord{Level: int32(severities[r.GetSeverity()]), Message: r.GetMessage()}
	if err := h.impl.Log(&logStream{record: record, ctx: ctx}); err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

func (h *Host) listMetadata(ctx context.Context, r *cipdv1.ListMetadataRequest) (*cipdv1.ListMetadataResponse, error) {
	if r.GetServiceUrl() != h.serviceURL {
		return nil, status.Errorf(codes.PermissionDenied,
			"only the metadata of %s can be listed, with which the host works", h.serviceURL)
	}
	id, err := instanceID(r.GetInstance())
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

// logStream is a stream of one record.
type logStream struct {
	grpc.ServerStream // nil: the service does not use it
	record            *pluginv1.LogRecord
	ctx               context.Context //nolint:containedctx // A grpc.ServerStream has one.
}

func (s *logStream) Context() context.Context { return s.ctx }

func (s *logStream) Recv() (*pluginv1.LogRequest, error) {
	if s.record == nil {
		return nil, io.EOF
	}
	request := &pluginv1.LogRequest{Records: []*pluginv1.LogRecord{s.record}}
	s.record = nil
	return request, nil
}

func (s *logStream) SendAndClose(*pluginv1.LogResponse) error { return nil }

const sha1Size = 20

// sizes are the lengths of digests in bytes.
var sizes = map[cipdv1.HashAlgo]int{
	cipdv1.HashAlgo_HASH_ALGO_SHA1:   sha1Size,
	cipdv1.HashAlgo_HASH_ALGO_SHA256: sha256.Size,
}

// encoding is the encoding of instance IDs. It is strict, so that each digest has only one ID.
var encoding = base64.RawURLEncoding.Strict()

// ParseInstanceID parses an instance ID: the unpadded URL-safe base64 of the digest and a byte with the number of its algorithm, or the old
// form, the 40 hexadecimal digits of a SHA-1.
func ParseInstanceID(id string) (*cipdv1.ObjectRef, error) {
	if len(id) == hex.EncodedLen(sha1Size) {
		ref := &cipdv1.ObjectRef{HashAlgo: cipdv1.HashAlgo_HASH_ALGO_SHA1, HexDigest: id}
		if _, err := digestOf(ref); err != nil {
			return nil, invalid(id, err)
		}
		return ref, nil
	}
	if strings.ContainsAny(id, "\r\n") {
		return nil, invalid(id, errors.New("it has a line break")) // the decoder would skip it
	}
	raw, err := encoding.DecodeString(id)
	if err != nil {
		return nil, invalid(id, err)
	}
	if len(raw) == 0 {
		return nil, invalid(id, errors.New("it is empty"))
	}
	digest, algo := raw[:len(raw)-1], cipdv1.HashAlgo(raw[len(raw)-1])
	if size, known := sizes[algo]; !known || size != len(digest) {
		return nil, invalid(id, fmt.Errorf("it has a digest of %d bytes by algorithm %d", len(digest), algo))
	}
	return &cipdv1.ObjectRef{HashAlgo: algo, HexDigest: hex.EncodeToString(digest)}, nil
}

// instanceID is the reverse of [ParseInstanceID]. For SHA-1 it returns the old form.
func instanceID(ref *cipdv1.ObjectRef) (string, error) {
	digest, err := digestOf(ref)
	if err != nil {
		return "", err
	}
	if ref.GetHashAlgo() == cipdv1.HashAlgo_HASH_ALGO_SHA1 {
		return ref.GetHexDigest(), nil
	}
	return encoding.EncodeToString(append(digest, byte(ref.GetHashAlgo()))), nil
}

func digestOf(ref *cipdv1.ObjectRef) ([]byte, error) {
	size, known := sizes[ref.GetHashAlgo()]
	if !known {
		return nil, fmt.Errorf("unknown digest algorithm %d", ref.GetHashAlgo())
	}
	digest, err := hex.DecodeString(ref.GetHexDigest())
	if err != nil || len(digest) != size || hex.EncodeToString(digest) != ref.GetHexDigest() {
		return nil, fmt.Errorf("%.100q is not a digest of %d bytes in lower-case hexadecimal digits", ref.GetHexDigest(), size)
	}
	return digest, nil
}

func invalid(id string, err error) error {
	return fmt.Errorf("%.100q is not an instance ID: %w", id, err)
}

// maxResolutions bounds the queued answers of a plugin, and how many of them are read together. A faster plugin has to wait.
const maxResolutions = 256

// Admissions is the service cipd.plugin.Admissions on top of patchbay.plugin.v1.Admissions, for one process. It joins the process's calls
// to one stream of Patchbay's service. It is safe for concurrent use.
type Admissions struct {
	impl        pluginv1.AdmissionsServer
	resolutions chan *pluginv1.Resolution
	// ended is closed when the stream has ended, after which resolutions are discarded.
	ended  chan struct{}
	listed atomic.Bool
}

// NewAdmissions returns the service for one process.
func NewAdmissions(impl pluginv1.AdmissionsServer) *Admissions {
	return &Admissions{
		impl: impl, resolutions: make(chan *pluginv1.Resolution, maxResolutions), ended: make(chan struct{}),
	}
}

// listAdmissions serves the stream. Both protocols have version 1, so the implementation can check the version.
func (a *Admissions) listAdmissions(r *cipdv1.ListAdmissionsRequest, stream grpc.ServerStream) error {
	if !a.listed.CompareAndSwap(false, true) {
		return status.Error(codes.FailedPrecondition, "admissions are listed already, or were; a process can list them once")
	}
	defer close(a.ended)
	hello := &pluginv1.Hello{ProtocolVersion: r.GetProtocolVersion(), PluginVersion: r.GetPluginVersion()}
	return a.impl.Admit(&admitStream{ServerStream: stream, admissions: a, hello: hello})
}

// resolveAdmission receives an answer. The implementation ignores answers to unknown checks.
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

func (a *Admissions) resolve(ctx context.Context, r *pluginv1.Resolution) error {
	select {
	case a.resolutions <- r:
	case <-a.ended:
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	return nil
}

// admitStream joins the calls of a plugin to one stream.
type admitStream struct {
	grpc.ServerStream // of listAdmissions
	admissions        *Admissions
	hello             *pluginv1.Hello // nil after Recv has returned it
	admission         cipdv1.Admission
}

// Send sends checks to the plugin. It refuses checks whose instance ID CIPD's protocol cannot express.
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

// Recv returns the hello first, and then all answers that are queued.
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
