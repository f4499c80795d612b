package sdk

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/sdk/internal/launched"
	"github.com/patchbay-dev/patchbay/sdk/internal/reflection"
)

// server is the gRPC server of a plugin with what the SDK adds to it.
type server struct {
	*grpc.Server
	health *health.Server
	// endWatches ends the streams of Health.Watch, which would delay a drain.
	endWatches context.CancelFunc
}

// newServer returns a server with all services registered.
func newServer(ctx context.Context, p Plugin, registration registerapi.RegistrationServer) (*server, error) {
	session, err := launched.From(ctx)
	if err != nil {
		return nil, err
	}
	draining, endWatches := context.WithCancel(context.WithoutCancel(ctx))
	options := []grpc.ServerOption{grpc.ChainStreamInterceptor(intercept(draining, session))}
	if !session.OfProcess() {
		options = append(options, grpc.ChainUnaryInterceptor(
			func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				return handler(launched.With(ctx, session), req)
			}))
	}
	s := &server{Server: grpc.NewServer(append(options, p.ServerOptions...)...), health: health.NewServer(), endWatches: endWatches}
	if p.Register != nil {
		p.Register(s.Server)
	}
	own := s.GetServiceInfo()
	if _, ok := own[registerapi.Registration_ServiceDesc.ServiceName]; ok {
		s.Stop()
		return nil, errors.New("Plugin.Register registers the registration service, which is the SDK's; leave it out")
	}
	registerapi.RegisterRegistrationServer(s, registration)
	if _, ok := own[healthpb.Health_ServiceDesc.ServiceName]; !ok {
		healthpb.RegisterHealthServer(s, s.health)
		for service := range own {
			s.health.SetServingStatus(service, healthpb.HealthCheckResponse_SERVING)
		}
	}
	if _, ok := own[reflection.Service]; !ok {
		reflection.Register(s.Server)
	}
	return s, nil
}

// drain stops the server when the calls in progress have ended, or cuts them off. It reports whether they ended in time.
func (s *server) drain(limit time.Duration) bool {
	s.endWatches()
	timer := time.AfterFunc(limit, s.Stop)
	s.GracefulStop()
	return timer.Stop()
}

// intercept adds the session to the contexts of all streams. It ends the streams of Health.Watch when draining is done, because their
// clients would keep them open.
func intercept(draining context.Context, session *launched.Session) grpc.StreamServerInterceptor {
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, cancel := context.WithCancel(launched.With(stream.Context(), session))
		defer cancel()
		if info.FullMethod == healthpb.Health_Watch_FullMethodName {
			defer context.AfterFunc(draining, cancel)()
		}
		return handler(srv, &streamWith{stream, ctx})
	}
}

// streamWith is a stream with another context.
type streamWith struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a stream is asked for its context
}

func (s *streamWith) Context() context.Context { return s.ctx }

// pidHeader is the metadata key with which a plugin sends its PID in the answer to GetInfo.
const pidHeader = "patchbay-plugin-pid"

// registration is the registration service. A host that restarts calls it again, so it answers any number of calls.
type registration struct {
	registerapi.UnimplementedRegistrationServer
	plugin Plugin
	log    *slog.Logger
	// itsOwn means that the plugin created its socket, so another instance may take its path. It is set before the plugin serves.
	itsOwn bool

	// The latest result, until await receives it; further equal results are dropped.
	registered chan struct{}
	refused    chan string
}

// GetInfo implements registerapi.RegistrationServer.
func (r *registration) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	if r.itsOwn { // an older instance is known by it to the one that takes over; a host does not look
		_ = grpc.SetHeader(ctx, metadata.Pairs(pidHeader, strconv.Itoa(os.Getpid())))
	}
	return r.plugin.info(), nil
}

func (p Plugin) info() *registerapi.PluginInfo {
	return &registerapi.PluginInfo{
		Type: p.Type, Name: p.Name, Endpoint: p.Endpoint, SupportedVersions: slices.Clone(p.Versions),
	}
}

// NotifyRegistrationStatus implements registerapi.RegistrationServer. It does not block.
func (r *registration) NotifyRegistrationStatus(
	_ context.Context, status *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	if status.PluginRegistered {
		// Not at the level that is sent: the host knows it, and the plugin would connect to it for this alone.
		r.log.Debug("the host registered the plugin", "name", r.plugin.String())
		offer(r.registered, struct{}{})
	} else {
		r.log.Warn("the host refused the plugin", "name", r.plugin.String(), "reason", status.Error)
		offer(r.refused, status.Error)
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

func offer[T any](to chan<- T, what T) {
	select {
	case to <- what:
	default:
	}
}
