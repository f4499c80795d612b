// Package access authorizes calls on the daemon's control socket and records them.
//
// An [Authorizer] identifies the caller of each connection by its peer credentials and checks the [Role] of the caller for each call. An
// [Auditor] publishes and logs operations and denials. [Rules] are rules that can change while calls are in progress.
package access

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/proxy"
)

// ErrThroughPlugin is the error of a call of the control API that arrived through a plugin whose endpoint is the control socket.
var ErrThroughPlugin = errors.New(
	"the control API is not reached through a plugin: the endpoint of the plugin that was called is the control socket")

// Authorizer allows calls on the control socket by the roles of their callers. It does not rely on the mode of the socket. Its methods are
// safe for concurrent use.
type Authorizer struct {
	socketPath string
	// uid is the user of the daemon.
	uid   uint32
	audit *Auditor

	*Rules[Policy]
}

// NewAuthorizer returns the authorizer of a control socket.
func NewAuthorizer(socketPath string, p Policy, audit *Auditor) *Authorizer {
	return &Authorizer{socketPath: socketPath, uid: uint32(os.Geteuid()), audit: audit, Rules: NewRules(p)}
}

// ConnContext identifies the caller of a connection. It is a ConnContext of [http.Server].
func (a *Authorizer) ConnContext(ctx context.Context, conn net.Conn) context.Context {
	if c, ok := conn.(interface {
		ConnContext(parent context.Context) context.Context
	}); ok { // its caller was identified when it was accepted
		return c.ConnContext(ctx)
	}
	return WithCaller(ctx, a.Identify(conn))
}

// IsStranger reports whether a caller has no role.
func (a *Authorizer) IsStranger(c *Caller) bool { return a.roleOf(a.Current(), c) == None }

// deniedError is the error of a call whose caller does not have the role.
type deniedError struct{ text string }

func (d *deniedError) Error() string { return d.text }

// GRPCStatus returns PermissionDenied; package status calls it.
func (d *deniedError) GRPCStatus() *status.Status { return status.New(codes.PermissionDenied, d.text) }

// IsDenial reports whether err means that the caller does not have the role.
func IsDenial(err error) bool {
	_, ok := errors.AsType[*deniedError](err)
	return ok
}

func (a *Authorizer) roleOf(p Policy, c *Caller) Role {
	if c.unknown != nil {
		return None
	}
	if c.peer.UID == 0 || c.peer.UID == a.uid {
		return Admin
	}
	found := p.users[c.peer.UID]
	for _, gid := range c.groups {
		found = max(found, p.groups[gid])
		if c.socketErr == nil && gid == c.socketGroup {
			found = max(found, p.byGroup)
		}
	}
	return found
}

// Role returns the role of the caller of a request.
func (a *Authorizer) Role(request context.Context) Role {
	return a.roleOf(a.Current(), CallerOf(request))
}

// deny returns an error if the caller does not have the needed role in a policy.
func (a *Authorizer) deny(p Policy, c *Caller, needed Role) error {
	has := a.roleOf(p, c)
	switch {
	case has >= needed:
		return nil
	case c.unknown != nil:
		return &deniedError{fmt.Sprintf("the caller cannot be identified: %v", c.unknown)}
	}
	text := fmt.Sprintf("user %d has the role %s on this control socket", c.peer.UID, has)
	if has == None {
		text = fmt.Sprintf("user %d has no role on this control socket", c.peer.UID)
	}
	text += fmt.Sprintf(", and the call needs %s: ", needed)
	if p.byGroup >= needed && c.socketErr == nil {
		text += fmt.Sprintf("add the user to the socket's group %d, or ", c.socketGroup)
	}
	text += fmt.Sprintf("name the user or a group of theirs under control.roles.%s in the daemon's configuration", needed)
	for _, err := range []error{c.groupsErr, c.socketErr} {
		if err != nil {
			text += fmt.Sprintf(" (%v)", err)
		}
	}
	return &deniedError{text}
}

// Authorize returns an error if the caller of a request does not have the needed role. Denials are audited.
func (a *Authorizer) Authorize(request context.Context, action string, needed Role) error {
	c := CallerOf(request)
	err := a.deny(a.Current(), c, needed)
	if err != nil {
		a.audit.denied(c, action, err)
	}
	return err
}

// AuthorizeCall returns an error if the caller of a request may not call a plugin now.
func (a *Authorizer) AuthorizeCall(request context.Context) error {
	if err := a.Authorize(request, callAction, CallRole); err != nil {
		return err
	}
	if c := CallerOf(request); c.UID() != 0 && c.UID() != a.uid {
		return a.audit.Admit(c)
	}
	return nil
}

// Called audits a call of a plugin that ended with a code; see [Auditor.Called].
func (a *Authorizer) Called(request context.Context, call Call, reached bool, code codes.Code) {
	a.audit.Called(CallerOf(request), call, reached, code)
}

// Hold returns a context that is canceled when the caller of the request loses the needed role; the cause is the denial. The caller of Hold
// must call release after the call.
func (a *Authorizer) Hold(request context.Context, needed Role) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(request)
	c := CallerOf(request)
	done, err := a.Admit(func(p Policy) error { return a.deny(p, c, needed) }, cancel)
	if err != nil { // the role was lost in between
		cancel(err)
		return ctx, func() {}
	}
	return ctx, func() {
		done()
		cancel(nil)
	}
}

// Gate refuses calls before their bodies are read. It is a [connect.RequestGateFunc].
func (a *Authorizer) Gate(ctx context.Context, spec connect.Spec, _ connect.Peer, header http.Header) (context.Context, error) {
	if errors.Is(context.Cause(ctx), server.ErrStopping) {
		return nil, connect.NewError(connect.CodeUnavailable, server.ErrStopping)
	}
	if len(header.Values(proxy.HopsKey)) > 0 { // the peer is the daemon itself, which has all rights
		return nil, connect.NewError(connect.CodePermissionDenied, ErrThroughPlugin)
	}
	if err := a.Authorize(ctx, actionOf(spec.Procedure), RoleFor(spec.Procedure)); err != nil {
		return nil, connect.NewError(connect.CodePermissionDenied, err)
	}
	return ctx, nil
}

// Interceptor returns an interceptor that cancels a call when its caller loses the role, and audits calls that need more than [Read].
func (a *Authorizer) Interceptor() connect.Interceptor { return interceptor{a} }

type interceptor struct{ *Authorizer }

// WrapUnary implements [connect.Interceptor].
func (i interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (response connect.AnyResponse, err error) {
		err = i.serve(ctx, request.Spec().Procedure, targetOf(request.Any()), func(ctx context.Context) (err error) {
			response, err = next(ctx, request)
			return err
		})
		if err != nil {
			return nil, err
		}
		return response, nil
	}
}

// WrapStreamingHandler implements [connect.Interceptor].
func (i interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, stream connect.StreamingHandlerConn) error {
		return i.serve(ctx, stream.Spec().Procedure, "", func(ctx context.Context) error { return next(ctx, stream) })
	}
}

func (i interceptor) serve(ctx context.Context, procedure, target string, call func(context.Context) error) error {
	needed := RoleFor(procedure)
	held, release := i.Hold(ctx, needed)
	defer release()
	err := call(held)
	if needed > Read {
		i.audit.Done(CallerOf(ctx), actionOf(procedure), target, err)
	}
	return err
}

// WrapStreamingClient implements [connect.Interceptor]; the daemon does not call itself.
func (interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}
