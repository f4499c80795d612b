package daemon

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	grpcmetadata "google.golang.org/grpc/metadata"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/config"
	"github.com/patchbay-dev/patchbay/internal/daemon/access"
	"github.com/patchbay-dev/patchbay/internal/daemon/limits"
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

// tls returns what the node shows to others, also when it calls them, and whom it believes; zero without a certificate.
func (c fleetConfig) tls() fleet.TLS {
	return fleet.TLS{CA: c.Serve.CA, Cert: c.Serve.Cert, Key: c.Serve.Key, ServerName: c.Serve.ServerName}
}

func (c fleetConfig) validateServe(check func(field string, err error)) {
	files := c.tls()
	if c.Serve.Listen != "" {
		if _, port, err := net.SplitHostPort(c.Serve.Listen); err != nil || port == "" {
			check("fleet.serve.listen", fmt.Errorf("%q is not HOST:PORT: write it as 10.0.0.7:7443 or :7443", c.Serve.Listen))
		}
		if files == (fleet.TLS{}) {
			check("fleet.serve", errNoCertificate)
		}
	}
	if files != (fleet.TLS{}) {
		check("fleet.serve", files.Validate())
	}
	for i, a := range c.Serve.Allow {
		err := cmp.Or(access.ValidatePatterns("identity", a.Identity), access.ValidatePatterns("types", a.Types...),
			access.ValidatePatterns("names", a.Names...), access.ValidatePatterns("methods", a.Methods...))
		if err != nil {
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
	// fleetStreams bounds the calls in progress on one connection; more of them wait at the caller. It is below what a node may have, so that
	// a call that has just ended there does not count against the next one.
	fleetStreams = 2000
)

// listen listens for other nodes, nil if the configuration says nothing of it.
func (c fleetConfig) listen(ctx context.Context) (net.Listener, error) {
	if !c.enabled() || c.Serve.Listen == "" {
		return nil, nil
	}
	listener, err := server.ListenTCP(ctx, c.Serve.Listen)
	if err != nil {
		return nil, fmt.Errorf("cannot take calls from other nodes: %w; choose another fleet.serve.listen", err)
	}
	return listener, nil
}

// published returns the address at which other nodes reach this one, which listens there or nowhere.
func (c fleetConfig) published(listener net.Listener) (string, error) {
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
	registry    proxy.Connector
	credentials *fleet.Credentials
	rules       *access.Rules[[]config.FleetAllow]
	denials     *access.Denials
	audit       *access.Auditor
	served      *peerCalls
	drain       *drain
	budget      *h2proxy.Budget
	log         *slog.Logger
	age         time.Duration // of a connection, see fleetConnAge
}

// serve starts to serve and returns. Calls end with ctx; the caller ends the rest with stop, which tells the callers why and returns when
// nothing is left. If it ends before that, failed is called and stop returns the error.
func (s *fleetServer) serve(ctx context.Context, listener net.Listener, failed func()) (stop func() error) {
	end, endCalls := context.WithCancelCause(context.Background())
	tlsConfig := s.credentials.Server()
	h2 := h2proxy.NewServer(h2proxy.ServerConfig{
		Budget: s.budget, Timeout: fleetHandshake, Streams: fleetStreams, Age: s.age, Silence: fleetSilence, Answer: fleetAnswer,
		Introduce: func(ctx context.Context, nc net.Conn) (h2proxy.Introduced, error) {
			return s.introduce(ctx, nc, tlsConfig)
		},
		Handle: func(caller grpc.ServerStream) error { return s.handle(end, caller) },
	})
	served := make(chan error, 1)
	go func() {
		err := h2.Serve(listener)
		if err != nil {
			failed()
		}
		served <- err
	}()
	forget := context.AfterFunc(ctx, func() { endCalls(server.ErrStopping) })
	return func() error {
		forget()
		endCalls(server.ErrStopping) // no harm if it was called before
		late := time.AfterFunc(server.StopTimeout, func() {
			if n := s.drain.inProgress(); n > 0 {
				// A caller that does not read has its call end like this, and is no reason for the daemon to end with an error.
				s.log.Warn("calls from other nodes were still in progress and were aborted", "calls", n, "after", server.StopTimeout)
			}
			h2.Stop()
		})
		defer late.Stop()
		h2.Drain()
		if err := <-served; err != nil {
			return fmt.Errorf("cannot go on taking calls from other nodes: %w", err)
		}
		return nil
	}
}

// introduce has a caller show who it is. Its certificate is judged at each call.
func (s *fleetServer) introduce(ctx context.Context, nc net.Conn, tlsConfig *tls.Config) (h2proxy.Introduced, error) {
	conn := tls.Server(nc, tlsConfig)
	err := conn.HandshakeContext(ctx)
	state := conn.ConnectionState()
	if err == nil && state.NegotiatedProtocol != "h2" {
		err = errors.New("the caller does not speak HTTP/2")
	}
	if err != nil {
		s.log.Debug("a connection for calls from other nodes has ended at once", "address", nc.RemoteAddr(), "error", err)
		return h2proxy.Introduced{}, err
	}
	from := &peer.Peer{Addr: nc.RemoteAddr(), LocalAddr: nc.LocalAddr(), AuthInfo: credentials.TLSInfo{
		State: state, CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}}
	return h2proxy.Introduced{
		Conn: conn, UID: nodeUser(state.PeerCertificates[0]), Context: peer.NewContext(fleet.ConnContext(context.Background()), from),
	}, nil
}

// nodeUser stands for the caller from another node where callers are counted by user. No user of the machine has such a number.
func nodeUser(cert *x509.Certificate) uint32 {
	sum := fnv.New32a()
	_, _ = io.WriteString(sum, strings.Join(fleet.Identities(cert), "\x00")) // it never fails
	return limits.NonUser(sum.Sum32())
}

// handle handles a call, which ends with a context too, with its cause.
func (s *fleetServer) handle(end context.Context, caller grpc.ServerStream) (err error) {
	ctx, cancel := context.WithCancelCause(caller.Context())
	defer cancel(nil)
	defer context.AfterFunc(end, func() { cancel(context.Cause(end)) })()
	var from identities
	var call access.Call
	var release func() // nil for one that was not let in
	var done func()    // set with release
	reached := false   // a plugin
	defer func() {
		if len(from) > 0 {
			s.served.ended(from[0], err)
		}
		if release != nil {
			release()
			done()
			s.audit.Called(from, call, reached, status.Code(err))
		}
	}()
	return proxy.Director(func(ctx context.Context, method string) (conn grpc.ClientConnInterface, err error) {
		call.Method = strings.TrimPrefix(method, "/")
		if from, err = s.credentials.Caller(ctx); err != nil {
			return nil, err
		}
		md, _ := grpcmetadata.FromIncomingContext(ctx)
		if call.Plugin.Type, call.Plugin.Name, err = proxy.ParseRoute(md); err != nil {
			return nil, err
		}
		denied := func(rules []config.FleetAllow) error {
			return cmp.Or(s.credentials.Trusts(ctx), from.denied(call, rules))
		}
		if release, err = s.rules.Admit(denied, cancel); err != nil {
			return nil, s.denials.Deny(from, call)
		}
		done = s.drain.begin()
		if err := s.audit.Admit(from); err != nil {
			return nil, err
		}
		conn, err = proxy.ConnTo(ctx, s.registry, call.Plugin.Type, call.Plugin.Name)
		reached = err == nil
		return conn, err
	}).Forward(ctx, caller)
}

// errWithdrawn ends calls that no rule allows any more.
var errWithdrawn = status.Error(codes.PermissionDenied,
	"the call was ended because no rule in fleet.serve.allow of the node allows it any more")

// identities are the names in the certificate of a caller from another node. They are an [access.Actor].
type identities []string

func (i identities) Key() string { return strings.Join(i, "\x00") }

func (i identities) String() string {
	if len(i) == 0 {
		return "nobody that its certificate names"
	}
	return untrusted.Valid(untrusted.Cut(strings.Join(i, ", "), 128))
}

func (i identities) Attrs() []any { return []any{"caller", i.String()} }

// denied returns nil if one of the rules allows a call.
func (i identities) denied(call access.Call, rules []config.FleetAllow) error {
	if slices.ContainsFunc(rules, func(a config.FleetAllow) bool {
		return slices.ContainsFunc(i, func(identity string) bool { return matchIdentity(a.Identity, identity) }) &&
			access.MatchAny(a.Types, call.Plugin.Type) && access.MatchAny(a.Names, call.Plugin.Name) && access.MatchAny(a.Methods, call.Method)
	}) {
		return nil
	}
	return errWithdrawn
}

// matchIdentity reports whether a pattern matches who calls, see [fleet.Credentials.Caller]. A URI is only matched by a pattern with "://",
// or by "*".
func matchIdentity(pattern, identity string) bool {
	if pattern == "*" {
		return true
	}
	if isURI := strings.Contains(identity, "://"); isURI != strings.Contains(pattern, "://") {
		return false
	} else if !isURI {
		pattern = strings.ToLower(pattern)
	}
	return access.MatchAny([]string{pattern}, identity)
}

// useOffers puts other rules in force, for calls that begin from then on.
func (m *fleetMember) useOffers(offers []config.FleetOffer) {
	if m != nil {
		m.offers.Store(&offers)
	}
}

// reload applies who may offer what, and reads the certificate files that have changed. Calls to nodes whose CA was removed are aborted.
func (m *fleetMember) reload(offers []config.FleetOffer) {
	m.useOffers(offers)
	m.certificates()
}

// mayOffer is that of a [fleet.DialerConfig].
func (m *fleetMember) mayOffer(node, ptype, name string) bool {
	offers := *m.offers.Load()
	return len(offers) == 0 || slices.ContainsFunc(offers, func(o config.FleetOffer) bool {
		return access.MatchAny([]string{strings.ToLower(o.Node)}, strings.ToLower(node)) && access.MatchAny(o.Types, ptype) && access.MatchAny(o.Names, name)
	})
}

var (
	errNoFleet = errors.New("this node belongs to no fleet: name the endpoints of etcd with fleet.etcd.endpoints in its configuration")
	// errNoCertificate says that a listener has nothing to show.
	errNoCertificate = errors.New("calls from other nodes need a certificate: name the files cert, key and ca")
)
