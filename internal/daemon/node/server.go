package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
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
	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/fleet/nodecall"
	"github.com/patchbay-dev/patchbay/internal/h2proxy"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
)

const (
	// handshakeTimeout bounds the TLS handshake.
	handshakeTimeout = 10 * time.Second
	// maxConnAge is how long a connection takes new calls. After it, the caller makes another connection, with its present certificate.
	maxConnAge = 30 * time.Minute
	// After maxSilence a connection is pinged. The answer may take pingTimeout.
	maxSilence, pingTimeout = 20 * time.Second, 10 * time.Second
	// maxStreams bounds the calls in progress on one connection; further calls wait at the caller. It is lower than the bound of a node's
	// calls, so that a call that has just ended does not count against the next one.
	maxStreams = 2000
)

// callServer forwards the calls of other nodes that are allowed to the plugins of this node.
type callServer struct {
	*Node
	audit  *access.Auditor
	budget *h2proxy.Budget
	age    time.Duration // of a connection, see maxConnAge
}

// Serve starts to take calls from other nodes on a listener, and returns. The calls end with ctx. The caller must call stop, which returns
// after all calls. If the server fails before that, Serve calls failed, and stop returns the error.
func (n *Node) Serve(ctx context.Context, listener net.Listener, budget *h2proxy.Budget, failed func()) (stop func() error) {
	s := &callServer{n, access.NewAuditor(n.Events.Publish, n.Log), budget, maxConnAge}
	return s.serve(ctx, listener, failed)
}

// serve implements [Node.Serve].
func (s *callServer) serve(ctx context.Context, listener net.Listener, failed func()) (stop func() error) {
	end, endCalls := context.WithCancelCause(context.Background())
	tlsConfig := s.credentials.Server()
	h2 := h2proxy.NewServer(h2proxy.ServerConfig{
		Budget: s.budget, Timeout: handshakeTimeout, Streams: maxStreams, Age: s.age, Silence: maxSilence, Answer: pingTimeout,
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
		endCalls(server.ErrStopping)
		late := time.AfterFunc(server.StopTimeout, func() {
			if n := s.drain.inProgress(); n > 0 {
				// A caller that does not read is not an error of the daemon.
				s.Log.Warn("calls from other nodes were still in progress and were aborted", "calls", n, "after", server.StopTimeout)
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

// introduce performs the TLS handshake with a caller. The certificate of the caller is verified for each call.
func (s *callServer) introduce(ctx context.Context, nc net.Conn, tlsConfig *tls.Config) (h2proxy.Introduced, error) {
	conn := tls.Server(nc, tlsConfig)
	err := conn.HandshakeContext(ctx)
	state := conn.ConnectionState()
	if err == nil && state.NegotiatedProtocol != "h2" {
		err = errors.New("the caller does not speak HTTP/2")
	}
	if err != nil {
		s.Log.Debug("a connection for calls from other nodes has failed", "address", nc.RemoteAddr(), "error", err)
		return h2proxy.Introduced{}, err
	}
	from := &peer.Peer{Addr: nc.RemoteAddr(), LocalAddr: nc.LocalAddr(), AuthInfo: credentials.TLSInfo{
		State: state, CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}}
	caller := identities(nodecall.Identities(state.PeerCertificates[0]))
	return h2proxy.Introduced{
		Conn: conn, UID: nodecall.UserOf(caller.Key()), Context: peer.NewContext(nodecall.ConnContext(context.Background()), from),
	}, nil
}

// handle forwards a call. When the context end is done, the call is canceled with its cause.
func (s *callServer) handle(end context.Context, caller grpc.ServerStream) (err error) {
	ctx, cancel := context.WithCancelCause(caller.Context())
	defer cancel(nil)
	defer context.AfterFunc(end, func() { cancel(context.Cause(end)) })()
	var from identities
	var call access.Call
	var release func() // nil for a call that was not admitted
	var done func()    // set with release
	reached := false   // whether there was a plugin to call
	defer func() {
		if len(from) > 0 {
			s.Served.Ended(from[0], err)
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
			return nil, s.audit.DenyNode(from, call)
		}
		done = s.drain.begin()
		if err := s.audit.Admit(from); err != nil {
			return nil, err
		}
		conn, err = proxy.ConnTo(ctx, s.Exclusive(s.Registry), call.Plugin.Type, call.Plugin.Name)
		reached = err == nil
		return conn, err
	}).Forward(ctx, caller)
}

// errWithdrawn is the error of calls in progress that no rule allows any more.
var errWithdrawn = status.Error(codes.PermissionDenied,
	"the call was ended because no rule in fleet.serve.allow of the node allows it any more")

// identities are the names in the certificate of a caller from another node. They are an [access.Actor].
type identities []string

func (i identities) Key() string { return strings.Join(i, "\x00") }

func (i identities) String() string {
	if len(i) == 0 {
		return "nobody that its certificate names"
	}
	return untrusted.ValidCut(strings.Join(i, ", "), 128)
}

func (i identities) Attrs() []any { return []any{"caller", i.String()} }

// denied returns an error if no rule allows a call.
func (i identities) denied(call access.Call, rules []config.FleetAllow) error {
	if slices.ContainsFunc(rules, func(a config.FleetAllow) bool {
		return slices.ContainsFunc(i, func(identity string) bool { return matchIdentity(a.Identity, identity) }) &&
			access.MatchAny(a.Types, call.Plugin.Type) && access.MatchAny(a.Names, call.Plugin.Name) && access.MatchAny(a.Methods,
			call.Method)
	}) {
		return nil
	}
	return errWithdrawn
}

// matchIdentity reports whether a pattern matches a caller, see [nodecall.Credentials.Caller]. A URI is only matched by a pattern with
// "://", or by "*".
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
