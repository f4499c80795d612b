// Package admission is for authors of admission plugins, which a host launches and asks whether packages may be deployed. An admission
// plugin is one function from a pin and its metadata to an error:
//
//	err := admission.Serve(ctx, func(ctx context.Context, pin plugin.Pin, md admission.Metadata) error {
//		for entry, err := range md.List(ctx, "signature") {
//			…
//		}
//		return errors.New("no signature")
//	})
//
// Nil admits. An error refuses, and its text is shown to people. A panic refuses too. The package makes no decisions and caches no answers;
// the host does. The host is one of Patchbay: that of CIPD cannot run such a plugin.
package admission

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/patchbay-dev/patchbay/api/patchbay/plugin/v1"
	"github.com/patchbay-dev/patchbay/internal/callback"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/sdk"
)

const (
	// protocolVersion is the version of the protocol of the Admit stream.
	protocolVersion = 1
	// maxMessage is the largest size of a refusal's text in bytes.
	maxMessage = 4096
)

// Check decides whether an instance of a package may be deployed: nil admits it. It is called concurrently.
//
// The refusal is final, and the host may remember it, unless the error carries a gRPC status that concerns this attempt only: Canceled,
// DeadlineExceeded, Aborted, Unavailable or ResourceExhausted (a wrapped error of a gRPC call does, and so do the errors of contexts). ctx
// ends when the plugin must stop.
type Check func(ctx context.Context, pin plugin.Pin, md Metadata) error

// Metadata gives access to the metadata of the package instance being checked. It is fetched on demand.
type Metadata struct{ pin plugin.Pin }

// List lists the metadata, newest first, as [sdk.ListMetadata] does; with keys, only theirs.
func (m Metadata) List(ctx context.Context, keys ...string) iter.Seq2[plugin.Metadata, error] {
	return sdk.ListMetadata(ctx, m.pin, keys...)
}

// Option changes a default of [Serve].
type Option func(*settings)

type settings struct {
	concurrency int
	version     string
}

// WithConcurrency bounds how many checks run at once. The default is eight for each processor, because most checks wait for metadata.
func WithConcurrency(n int) Option { return func(s *settings) { s.concurrency = n } }

// WithVersion tells the host the version of the plugin, for people.
func WithVersion(version string) Option { return func(s *settings) { s.version = version } }

// Serve answers the checks of the host that launched this process until the host ends it, ctx ends, or the process gets SIGTERM or SIGINT;
// then it returns nil, after the running checks have returned. It fails if no host launched the process (the error wraps
// [sdk.ErrNotLaunched]), or if the host has exited or does not accept admissions from this plugin.
func Serve(ctx context.Context, check Check, options ...Option) error {
	s := settings{concurrency: 8 * runtime.GOMAXPROCS(0)}
	for _, option := range options {
		if option == nil {
			return errors.New("cannot serve admissions: an option is nil; leave it out")
		}
		option(&s)
	}
	if check == nil || s.concurrency < 1 {
		return errors.New("cannot serve admissions: want a check and a concurrency of at least 1")
	}
	if err := untrusted.Check("the version", s.version, maxMessage); err != nil {
		return fmt.Errorf("cannot serve admissions: %w", err)
	}
	return sdk.Run(ctx, func(ctx context.Context) error {
		if err := serve(ctx, check, s); err != nil {
			return fmt.Errorf("cannot serve admissions: %w", err)
		}
		return nil
	})
}

func serve(ctx context.Context, check Check, s settings) error {
	conn, err := sdk.Host(ctx)
	if err != nil {
		return err
	}
	stopped := ctx.Done() // not by the end of this function
	ctx, cancel := context.WithCancel(ctx)
	stream, err := pluginv1.NewAdmissionsClient(conn).Admit(ctx)
	if err != nil {
		cancel()
		return ended(stopped, err)
	}
	// Recv returns the reason of a failure.
	_ = stream.Send(&pluginv1.AdmitRequest{Hello: &pluginv1.Hello{ProtocolVersion: protocolVersion, PluginVersion: s.version}})
	p := newPool(ctx, check, s.concurrency, stream.Send)
	defer p.wait()
	defer cancel()
	for {
		batch, err := stream.Recv()
		if err != nil {
			return ended(stopped, err)
		}
		if err := p.add(ctx, batch.Admissions); err != nil {
			return ended(stopped, err)
		}
	}
}

// ended returns nil if the end of the stream was requested, and otherwise err.
func ended(stopped <-chan struct{}, err error) error {
	select {
	case <-stopped:
		return nil
	default:
	}
	if status.Code(err) == codes.Aborted {
		return nil
	}
	return err
}

func resolve(ctx context.Context, check Check, a *pluginv1.Admission) *pluginv1.Resolution {
	r := &pluginv1.Resolution{Id: a.Id}
	pin := plugin.Pin{PackageName: a.GetPin().GetPackageName(), InstanceID: a.GetPin().GetInstanceId()}
	err := callback.Call(func() error {
		if err := check(ctx, pin, Metadata{pin: pin}); err != nil {
			r.Code, r.Message = refusal(err)
		}
		return nil
	})
	if unreturned, ok := errors.AsType[*callback.Error](err); ok {
		sdk.Logger(ctx, nil).Error("the admission check did not return", "pin", pin, "error", err.Error(), "stack", unreturned.Stack)
		r.Code, r.Message = refusal(status.Errorf(codes.Internal, "the admission check did not return: %v", err))
	}
	return r
}

// refusal returns the code and the text that are sent to the host for an error. The code is never OK.
func refusal(err error) (int32, string) {
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	code, message := s.Code(), s.Message()
	if code == codes.OK || code == codes.Unknown && !ok {
		code, message = codes.PermissionDenied, err.Error()
	}
	if len(message) > maxMessage {
		message = message[:maxMessage] + "…"
	}
	return int32(code), strings.ToValidUTF8(message, "\uFFFD") // which protobuf asks for
}
