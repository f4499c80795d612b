package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay"
	"github.com/patchbay-dev/patchbay/fleet"
	"github.com/patchbay-dev/patchbay/proxy"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// eventFleetCallDenied says that a call from another node was denied, and whose. Of those that are alike there is one in a minute.
const eventFleetCallDenied reconciler.EventKind = "fleet-call-denied"

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
	rules    *inForce[[]FleetAllow]
	denials  *denials
}

// serve starts to serve and returns. Calls end with ctx; the caller ends the rest with stop, which tells the callers why and returns when
// nothing is left. If it ends before that, failed is called and stop returns the error.
func (s *fleetServer) serve(ctx context.Context, listener net.Listener, c *fleet.Credentials, failed func()) (stop func() error) {
	end, refuse := context.WithCancelCause(context.Background())
	forget := context.AfterFunc(ctx, func() { refuse(errStopping) })
	server := proxy.NewServer(end, s.handle,
		grpc.Creds(c.Server()), grpc.ConnectionTimeout(fleetHandshake), grpc.MaxConcurrentStreams(fleetStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: fleetConnAge, Time: fleetSilence, Timeout: fleetAnswer}))
	served := make(chan error, 1)
	go func() {
		err := server.Serve(listener)
		if errors.Is(err, grpc.ErrServerStopped) { // before it began
			err = nil
		}
		if err != nil {
			failed()
		}
		served <- err
	}()
	return func() error {
		forget()
		refuse(errStopping)
		server.Drain()
		if err := <-served; err != nil {
			return fmt.Errorf("cannot go on taking calls from other nodes: %w", err)
		}
		return nil
	}
}

// handle is a [proxy.Handler].
func (s *fleetServer) handle(ctx context.Context, caller grpc.ServerStream) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var release func() // nil for one that was not let in
	defer func() {
		if release != nil {
			release()
		}
	}()
	return proxy.Director(func(ctx context.Context, method string) (_ grpc.ClientConnInterface, err error) {
		call := &fleetCall{method: strings.TrimPrefix(method, "/")}
		if call.identities, err = callerOf(ctx); err != nil {
			return nil, err
		}
		if call.plugin, _, err = routeOf(ctx); err != nil {
			return nil, err
		}
		if release, err = s.rules.letIn(call.denied, cancel); err != nil {
			return nil, s.denials.deny(call)
		}
		return connTo(ctx, s.registry, call.plugin)
	}).Forward(ctx, caller)
}

// callerOf returns who makes a call, by a certificate that may have run out since the connection was made.
func callerOf(ctx context.Context) (identities []string, err error) {
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
		return nil, status.Error(codes.Unauthenticated, "the certificate of the caller has expired: connect again with a new one")
	}
	return fleet.Identities(cert), nil
}

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
func (d *denials) deny(c *fleetCall) error {
	who := "nobody that its certificate names"
	if len(c.identities) > 0 {
		who = short(strings.Join(c.identities, ", "))
	}
	what := fmt.Sprintf("%s of plugin %s", short(c.method), shortName(c.plugin))
	if first, left, _ := d.told.first(audited{who: strings.Join(c.identities, "\x00"), method: what}); first {
		d.log.Warn("fleet: a call from another node was denied", "caller", who, "call", what, "leftOut", left)
		d.publish(reconciler.Event{
			Time: time.Now(), Kind: eventFleetCallDenied, Message: fmt.Sprintf("%s may not call %s%s", who, what, leftOut(left)),
		})
	}
	return status.Errorf(codes.PermissionDenied, "%s may not call %s: no rule in fleet.serve.allow of the node allows it", who, what)
}

// FleetAllow allows calls from other nodes. All of its parts have to match; in each, "*" alone matches everything, and else the patterns
// are those of [path.Match]: * stands for any text without a slash.
type FleetAllow struct {
	// Identity is a pattern for who calls, see [fleet.Identities]. A URI is only matched by a pattern with "://", or by "*".
	Identity string
	// Types and Names are patterns for the type, or role, and the name of the plugin as the caller writes them.
	Types, Names []string
	// Methods are patterns for SERVICE/METHOD, for example csi.v1.Controller/*.
	Methods []string
}

func (a FleetAllow) validate() error {
	for _, part := range []struct {
		key      string
		patterns []string
	}{{"identity", []string{a.Identity}}, {"types", a.Types}, {"names", a.Names}, {"methods", a.Methods}} {
		if len(part.patterns) == 0 || slices.Contains(part.patterns, "") {
			return fmt.Errorf(`%s is empty and would allow nothing: name what is allowed, or "*" for everything`, part.key)
		}
		for _, pattern := range part.patterns {
			if _, err := path.Match(pattern, ""); err != nil {
				return fmt.Errorf("%s has %q, which is no pattern: %w", part.key, pattern, err)
			}
		}
	}
	return nil
}

// errWithdrawn ends calls that no rule allows any more.
var errWithdrawn = status.Error(codes.PermissionDenied,
	"the call was ended because no rule in fleet.serve.allow of the node allows it any more")

// fleetCall is a call from another node.
type fleetCall struct {
	identities []string
	plugin     patchbay.PluginName
	method     string // SERVICE/METHOD
}

// denied says why none of the rules allows a call.
func (c *fleetCall) denied(rules []FleetAllow) error {
	if slices.ContainsFunc(rules, func(a FleetAllow) bool {
		return slices.ContainsFunc(c.identities, a.matchIdentity) && matchAny(a.Types, c.plugin.Type) && matchAny(a.Names, c.plugin.Name) &&
			matchAny(a.Methods, c.method)
	}) {
		return nil
	}
	return errWithdrawn
}

func (a FleetAllow) matchIdentity(identity string) bool {
	if a.Identity == "*" {
		return true
	}
	pattern := a.Identity
	if isURI := strings.Contains(identity, "://"); isURI != strings.Contains(pattern, "://") {
		return false
	} else if !isURI {
		pattern = strings.ToLower(pattern)
	}
	return matchAny([]string{pattern}, identity)
}

func matchAny(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matched, err := path.Match(pattern, text)
		return pattern == "*" || err == nil && matched
	})
}

var (
	errNoFleet = errors.New("this node belongs to no fleet: name the endpoints of etcd with fleet.etcd.endpoints in its configuration")
	// errNoCertificate says that a listener has nothing to show.
	errNoCertificate = errors.New("calls from other nodes need a certificate: name the files cert, key and ca")
)
