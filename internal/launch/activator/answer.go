package activator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/internal/sock"
	"github.com/patchbay-dev/patchbay/plugin"
)

const (
	// mode allows only root and the user of the host to call, because the process sees the host as the caller.
	mode = 0o600
	// maxRequest bounds the requests that the front answers itself.
	maxRequest = 16 << 10
	// flushTimeout bounds how long the old server may take to accept the connections that are queued when its socket is replaced.
	flushTimeout = time.Second
)

// errClosed is the error of calls that end because the plugin is stopped.
var errClosed = status.Error(codes.Unavailable, "the plugin was stopped")

// listening is a socket of the front with its server.
type listening struct {
	listener *sock.Placed
	server   *proxy.Server
	end      context.CancelCauseFunc
}

// Open listens and announces the plugin as info. If the front already listens with another announcement, a new socket replaces the old one,
// whose calls continue. With the same announcement, Open has no effect.
func (f *Front) Open(ctx context.Context, info plugin.Info) error {
	f.placing.Lock()
	defer f.placing.Unlock()
	f.mu.Lock()
	before, same := f.at, f.info.PluginName() == info.PluginName() && slices.Equal(f.info.Versions, info.Versions)
	f.mu.Unlock()
	if before != nil && same {
		return nil
	}
	return f.place(ctx, info, before)
}

// place creates a socket and a server. If before is not nil, they replace it. placing is held.
func (f *Front) place(ctx context.Context, info plugin.Info, before *listening) error {
	listener, err := sock.Place(ctx, f.path, mode, func(*net.UnixConn) error {
		if before == nil {
			return fmt.Errorf("%w: %s", sock.ErrInUse, f.path)
		}
		return nil
	})
	if err == nil {
		flushing, cancel := context.WithTimeout(ctx, flushTimeout)
		_ = listener.Flush(flushing) // clients that are not accepted connect again
		cancel()
		if err = listener.Commit(ctx); err != nil {
			_, failed := listener.Withdraw(context.WithoutCancel(ctx))
			err = errors.Join(err, failed, listener.Close())
		}
	}
	if err != nil {
		return fmt.Errorf("cannot answer for plugin %s at its socket: %w", f.name, err)
	}
	end, cancel := context.WithCancelCause(context.Background())
	now := &listening{listener, proxy.NewServer(end, f.handle, proxy.ServerConfig{Budget: f.budget}), cancel}
	f.mu.Lock()
	f.info, f.decision, f.at = info, decision{}, now
	f.mu.Unlock()
	f.serving.Go(func() { _ = now.server.Serve(userListener{listener}) }) // ends with the listener
	if before != nil {
		f.leave(before)
	}
	return nil
}

// Reopen replaces the socket of a front that listens.
func (f *Front) Reopen(ctx context.Context) error {
	f.placing.Lock()
	defer f.placing.Unlock()
	f.mu.Lock()
	o, info := f.at, f.info
	f.mu.Unlock()
	if o == nil {
		return nil
	}
	return f.place(ctx, info, o)
}

// leave stops listening; calls in progress continue. The channel is closed when they have ended.
func (f *Front) leave(o *listening) (left <-chan struct{}) {
	_ = o.listener.Close() // does not remove the file at the path
	ended := make(chan struct{})
	f.serving.Go(func() {
		defer close(ended)
		o.server.Drain()
		o.end(nil)
	})
	return ended
}

// Shut stops listening, cancels all calls and returns when they have ended. Open may be called again.
func (f *Front) Shut(ctx context.Context) error {
	return f.shut(ctx, func() bool { return true })
}

// ShutUnserved calls Shut, unless a process serves or is started on demand.
func (f *Front) ShutUnserved(ctx context.Context) error {
	return f.shut(ctx, func() bool { return f.target == nil && !f.settings.OnDemand })
}

// shut is Shut if may, which is called with mu held, returns true.
func (f *Front) shut(ctx context.Context, may func() bool) error {
	o, err := f.withdraw(ctx, may)
	if o != nil {
		o.end(errClosed)
		<-f.leave(o)
	}
	return err
}

// drain stops listening if t is the process that serves and none is started on demand, and returns when all calls have ended. It cancels
// them when ctx is done.
func (f *Front) drain(ctx context.Context, t *Target) {
	o, _ := f.withdraw(ctx, func() bool { return f.target == t && !f.settings.OnDemand }) // a file that cannot be removed is stale
	if o == nil {
		return
	}
	select {
	case <-f.leave(o):
	case <-ctx.Done():
		o.end(errClosed)
	}
}

// withdraw removes the socket if may, which is called with mu held, returns true. Connections and calls continue. It returns nil if the
// front does not listen, or may not be shut.
func (f *Front) withdraw(ctx context.Context, may func() bool) (*listening, error) {
	f.placing.Lock()
	defer f.placing.Unlock()
	f.mu.Lock()
	o := f.at
	if o == nil || !may() {
		f.mu.Unlock()
		return nil, nil
	}
	f.at = nil
	f.mu.Unlock()
	_, err := o.listener.Withdraw(context.WithoutCancel(ctx))
	return o, err
}

// Wait returns when all sockets that were shut or replaced have no calls and no goroutines. Open must not be called afterwards.
func (f *Front) Wait() { f.serving.Wait() }

// userListener is a listener whose connections have the method UID.
type userListener struct{ *sock.Placed }

// Accept implements [net.Listener].
func (c userListener) Accept() (net.Conn, error) {
	conn, err := c.Placed.Accept()
	return userConn{conn}, err
}

type userConn struct{ net.Conn }

// UID returns the user of the process that connected, for [proxy.Server].
func (p userConn) UID() uint32 {
	if local, ok := p.Conn.(*net.UnixConn); ok {
		if uid, err := sock.UserOf(local); err == nil {
			return uid
		}
	}
	return ^uint32(0)
}

// handle answers a call. It implements [proxy.Handler].
func (f *Front) handle(ctx context.Context, caller grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(caller)
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	switch t := f.present(); {
	case service == registerapi.Registration_ServiceDesc.ServiceName:
		return f.register(ctx, caller, name)
	case service == healthpb.Health_ServiceDesc.ServiceName && t == nil:
		return f.health(ctx, caller, name)
	case isReflection(service) && len(metadata.ValueFromIncomingContext(ctx, proxy.WillCallKey)) > 0: // like any call
	case isReflection(service) && t == nil:
		return status.Errorf(codes.FailedPrecondition, "plugin %s is not running, and who only looks does not start it: call a method, "+
			"start it, or set the metadata key %s", f.name, proxy.WillCallKey)
	case t != nil && (service == healthpb.Health_ServiceDesc.ServiceName || isReflection(service)):
		return f.forward(ctx, caller, t.Services)
	}
	t, end, err := f.use(ctx)
	if err != nil {
		return proxy.CallError("plugin "+f.name, err)
	}
	defer end()
	return f.forward(ctx, caller, t.Services)
}

func isReflection(service string) bool {
	return service == reflectionv1.ServerReflection_ServiceDesc.ServiceName ||
		service == reflectionv1alpha.ServerReflection_ServiceDesc.ServiceName
}

func (f *Front) forward(ctx context.Context, caller grpc.ServerStream, to grpc.ClientConnInterface) error {
	return proxy.Director(func(context.Context, string) (grpc.ClientConnInterface, error) {
		return proxy.Named(to, "plugin "+f.name), nil
	}).Forward(ctx, caller)
}

// register answers the registration service. It passes the host's decision to the running process; later processes get it too.
func (f *Front) register(ctx context.Context, caller grpc.ServerStream, method string) error {
	request, err := h2proxy.ReadMessage(caller, maxRequest)
	if err != nil {
		return err
	}
	switch method {
	case "GetInfo":
		f.mu.Lock()
		info := f.info
		f.decision = decision{} // a new decision follows
		f.mu.Unlock()
		return answer(caller, &registerapi.PluginInfo{Type: info.Type, Name: info.Name, SupportedVersions: info.Versions})
	case "NotifyRegistrationStatus":
		var said registerapi.RegistrationStatus
		if err := proto.Unmarshal(request, &said); err != nil {
			return status.Errorf(codes.InvalidArgument, "decode the request: %v", err)
		}
		if err := f.decide(ctx, decision{true, said.GetPluginRegistered(), said.GetError()}); err != nil {
			return err
		}
		return answer(caller, &registerapi.RegistrationStatusResponse{})
	}
	return status.Errorf(codes.Unimplemented, "the registration has no method %s", method)
}

// decide stores the host's decision and notifies the running process, if it implements the method.
func (f *Front) decide(ctx context.Context, d decision) error {
	f.mu.Lock()
	f.decision = d
	t := f.target
	f.mu.Unlock()
	if t == nil {
		return nil
	}
	err := t.Notify(ctx, d.registered, d.reason)
	if status.Code(err) == codes.Unimplemented {
		return nil
	}
	return err
}

// health answers SERVING for a plugin that is not running, because a call starts it.
func (f *Front) health(ctx context.Context, caller grpc.ServerStream, method string) error {
	if _, err := h2proxy.ReadMessage(caller, maxRequest); err != nil {
		return err
	}
	err := answer(caller, &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING})
	if method == "Watch" && err == nil {
		<-ctx.Done()
	}
	return err
}

func answer(caller grpc.ServerStream, m proto.Message) error {
	message, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	return h2proxy.WriteMessage(caller, message)
}
