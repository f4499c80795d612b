package daemon

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	grpcmetadata "google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/fleet"
	"github.com/patchbay-dev/patchbay/proxy"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// EventFleetCallDenied says that a call from another node was denied, and whose. Of those that are alike there is one in a minute.
const EventFleetCallDenied reconciler.EventKind = "fleet-call-denied"

// FleetServe says how the node and others call each other's plugins. The zero value stands for not at all.
type FleetServe struct {
	// Listen is HOST:PORT at which calls from other nodes are taken; empty for none. Without a host it is every address of the machine.
	Listen string
	// TLS is what the node shows to others, also when it calls them, and whom it believes.
	TLS fleet.TLS
	// Allow says who may call what. What no rule allows is denied.
	Allow []FleetAllow
}

// enabled says whether the node has a certificate for calls to others.
func (s FleetServe) enabled() bool { return s.TLS != fleet.TLS{} }

func (s FleetServe) validate(check func(field string, err error)) {
	if s.Listen != "" {
		if _, port, err := net.SplitHostPort(s.Listen); err != nil || port == "" {
			check("fleet.serve.listen", fmt.Errorf("%q is not HOST:PORT: write it as 10.0.0.7:7443 or :7443", s.Listen))
		}
		if !s.enabled() {
			check("fleet.serve", errNoCertificate)
		}
	}
	if s.enabled() {
		check("fleet.serve", s.TLS.Validate())
	}
	for i, a := range s.Allow {
		if err := a.validate(); err != nil {
			check("fleet.serve.allow", fmt.Errorf("rule %d: %w", i+1, err))
		}
	}
}

const (
	// fleetHandshake bounds the time in which a caller shows who it is.
	fleetHandshake = 10 * time.Second
	// fleetConnAge is how long a connection takes new calls: then the caller makes another one, which is judged by the certificates of that
	// time. Calls in progress go on.
	fleetConnAge = 30 * time.Minute
	// fleetSilence and fleetAnswer are after which time of silence a caller is asked whether it is there, and how long it may take.
	fleetSilence, fleetAnswer = 20 * time.Second, 10 * time.Second
	// fleetStreams bounds the calls in progress on one connection; more of them wait.
	fleetStreams = 4096
)

// listen listens for other nodes, nil if the configuration says nothing of it.
func (c FleetConfig) listen(ctx context.Context) (net.Listener, error) {
	if !c.enabled() || c.Serve.Listen == "" {
		return nil, nil
	}
	listener, err := listenTCP(ctx, c.Serve.Listen)
	if err != nil {
		return nil, fmt.Errorf("cannot take calls from other nodes: %w; choose another fleet.serve.listen", err)
	}
	return listener, nil
}

// published returns the address at which other nodes reach this one, which listens there or nowhere.
func (c FleetConfig) published(listener net.Listener) (string, error) {
	if c.Address != "" || listener == nil {
		return c.Address, nil
	}
	addr, ok := listener.Addr().(*net.TCPAddr)
	if !ok || !addr.IP.IsUnspecified() {
		return listener.Addr().String(), nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("cannot find out the host name for other nodes: %w; set fleet.address", err)
	}
	return net.JoinHostPort(host, fmt.Sprint(addr.Port)), nil
}

// fleetServer takes calls from other nodes, and forwards those that are allowed to the plugins of this node.
type fleetServer struct {
	registry connector
	rules    *fleetRules
	denials  *denials
	grpc     *grpc.Server
	end      context.Context //nolint:containedctx // All calls share it.
	refuse   context.CancelCauseFunc
	forget   func() bool
	served   chan error
}

// serveFleet starts to serve and returns. Calls end with ctx; the caller ends the rest with stop. If it ends before that, failed is called
// and stop returns the error.
func serveFleet(
	ctx context.Context, listener net.Listener, c *fleet.Credentials, rules *fleetRules, registry connector,
	publish func(reconciler.Event), failed func(), log *slog.Logger,
) *fleetServer {
	s := &fleetServer{
		registry: registry, rules: rules, denials: newDenials(publish, log),
		served: make(chan error, 1),
	}
	s.end, s.refuse = context.WithCancelCause(context.Background())
	s.forget = context.AfterFunc(ctx, func() { s.refuse(errStopping) })
	forward := proxy.Handler(s.direct)
	s.grpc = proxy.NewServer(func(srv any, caller grpc.ServerStream) error {
		call := &fleetCall{}
		ctx, cancel := context.WithCancelCause(context.WithValue(caller.Context(), fleetCallKey{}, call))
		defer cancel(nil)
		call.cancel = cancel
		defer rules.done(call)
		err := endWith(s.end, streamWithContext{caller, ctx}, func(caller grpc.ServerStream) error { return forward(srv, caller) })
		if err != nil && errors.Is(context.Cause(ctx), errWithdrawn) {
			return status.Error(codes.PermissionDenied, errWithdrawn.Error())
		}
		return err
	}, grpc.Creds(c.Server()), grpc.ConnectionTimeout(fleetHandshake), grpc.MaxConcurrentStreams(fleetStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: fleetConnAge, Time: fleetSilence, Timeout: fleetAnswer}))
	go func() {
		err := s.grpc.Serve(listener)
		if errors.Is(err, grpc.ErrServerStopped) { // before it began
			err = nil
		}
		if err != nil {
			failed()
		}
		s.served <- err
	}()
	return s
}

// stop ends all calls, tells the callers why, and returns when nothing is left.
func (s *fleetServer) stop() error {
	s.forget()
	s.refuse(errStopping)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.grpc.GracefulStop()
	}()
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-stopped:
	case <-timer.C:
		s.grpc.Stop()
		<-stopped
	}
	if err := <-s.served; err != nil {
		return fmt.Errorf("cannot go on taking calls from other nodes: %w", err)
	}
	return nil
}

// direct is a proxy.Director.
func (s *fleetServer) direct(ctx context.Context, method string) (grpc.ClientConnInterface, error) {
	cert, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	md, _ := grpcmetadata.FromIncomingContext(ctx)
	ptype, name, err := proxy.ParseRoute(md)
	if err != nil {
		return nil, status.Error(codes.Unimplemented, err.Error())
	}
	call, ok := ctx.Value(fleetCallKey{}).(*fleetCall)
	if !ok {
		return nil, status.Error(codes.Internal, "the call came over no server for the fleet")
	}
	call.identities, call.ptype, call.name, call.method = fleet.Identities(cert), ptype, name, method
	if !s.rules.admit(call) {
		return nil, s.denials.deny(call.identities, ptype, name, method)
	}
	return connTo(ctx, s.registry, ptype, name)
}

// fleetCallKey leads to the call of a context.
type fleetCallKey struct{}

// callerOf returns the certificate with which a call came. It may have run out since the connection was made.
func callerOf(ctx context.Context) (*x509.Certificate, error) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return nil, status.Error(codes.Unauthenticated, "it is not known who calls")
	}
	info, ok := from.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 || len(info.State.PeerCertificates) == 0 {
		return nil, status.Error(codes.Unauthenticated, "the caller has shown no certificate")
	}
	cert := info.State.PeerCertificates[0]
	if time.Now().After(cert.NotAfter) {
		return nil, status.Error(codes.Unauthenticated, "the certificate of the caller has run out: connect anew with another one")
	}
	return cert, nil
}

// maxDenialText is the greatest length of what a caller says in a denial.
const maxDenialText = 128

// denials makes denied calls known.
type denials struct {
	publish func(reconciler.Event)
	log     *slog.Logger
	told    *sparse
}

func newDenials(publish func(reconciler.Event), log *slog.Logger) *denials {
	return &denials{publish, log, newSparse(maxSparse, maxTold)}
}

// deny makes one known and returns its status, which is the same whether there is such a plugin or not.
func (d *denials) deny(identities []string, ptype, name, method string) error {
	who := "nobody that its certificate names"
	if len(identities) > 0 {
		who = short(strings.Join(identities, ", "))
	}
	what := fmt.Sprintf("%s of plugin %s/%s", short(strings.TrimPrefix(method, "/")), short(ptype), short(name))
	if first, left, _ := d.told.first(audited{who: strings.Join(identities, "\x00"), method: what}); first {
		d.log.Warn("fleet: a call from another node was denied", "caller", who, "call", what, "leftOut", left)
		message := fmt.Sprintf("%s may not call %s", who, what)
		if left > 0 {
			message += fmt.Sprintf(" (%d were left out before it)", left)
		}
		d.publish(reconciler.Event{Time: time.Now(), Kind: EventFleetCallDenied, Message: message})
	}
	return status.Errorf(codes.PermissionDenied, "%s may not call %s: no rule in fleet.serve.allow of the node allows it", who, what)
}

// short returns text of a caller for people.
func short(text string) string {
	if len(text) > maxDenialText {
		text = text[:maxDenialText] + "..."
	}
	return valid(strings.ToValidUTF8(text, "?"))
}

var errNoFleet = errors.New("this node belongs to no fleet: name the endpoints of etcd with fleet.etcd.endpoints in its configuration")
