package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path"
	"slices"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-dev/patchbay/internal/daemon/server"
	"github.com/patchbay-dev/patchbay/internal/proxy"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// errThroughPlugin is the error of a call that a plugin's endpoint brought here.
var errThroughPlugin = errors.New(
	"the control API is not reached through a plugin: the endpoint of the plugin that was called is the control socket")

// guard lets callers of the control socket do what their roles allow, by their peer credentials. The mode of the socket says who can
// connect; the guard still holds when the mode was changed or does not count.
type guard struct {
	socketPath string
	// uid is the user of the daemon.
	uid   uint32
	audit *auditor

	*inForce[policy]
}

func newGuard(socketPath string, p policy, audit *auditor) *guard {
	return &guard{socketPath: socketPath, uid: uint32(os.Geteuid()), audit: audit, inForce: newInForce(p)}
}

// inForce has rules that can change while calls are in progress: those that it lets in end when other rules deny them.
type inForce[Rules any] struct {
	mu    sync.Mutex
	rules Rules
	calls map[*ruledCall[Rules]]bool
}

type ruledCall[Rules any] struct {
	denied func(Rules) error
	end    context.CancelCauseFunc
}

func newInForce[Rules any](rules Rules) *inForce[Rules] {
	return &inForce[Rules]{rules: rules, calls: map[*ruledCall[Rules]]bool{}}
}

func (f *inForce[Rules]) now() Rules {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rules
}

// use puts other rules in force, and ends the calls that they deny, for the reason that denied returns.
func (f *inForce[Rules]) use(rules Rules) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = rules
	f.judge()
}

// judgeAgain ends the calls that are denied now for another reason than other rules.
func (f *inForce[Rules]) judgeAgain() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.judge()
}

// judge ends the calls that are denied. The caller holds mu.
func (f *inForce[Rules]) judge() {
	for call := range f.calls {
		if err := call.denied(f.rules); err != nil {
			call.end(err)
		}
	}
}

// letIn lets a call in until it is released, unless the rules deny it.
func (f *inForce[Rules]) letIn(denied func(Rules) error, end context.CancelCauseFunc) (release func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := denied(f.rules); err != nil {
		return nil, err
	}
	call := &ruledCall[Rules]{denied, end}
	f.calls[call] = true
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.calls, call)
	}, nil
}

// caller is the process at the other end of a connection, as it was when it connected.
type caller struct {
	peer sock.Peer
	// unknown says why nothing is known of it.
	unknown error
	// groups are those that it is in, as far as they are known for certain; groupsErr says why others are not.
	groups    []uint32
	groupsErr error
	// socketGroup is the group of the control socket, unless socketErr says why that is not known.
	socketGroup uint32
	socketErr   error
}

// uid returns the user to whom what the caller has counts.
func (c *caller) uid() uint32 {
	if c.unknown != nil {
		return unknownUser
	}
	return c.peer.UID
}

type callerKey struct{}

// callerIn returns who makes a request, whose context it is given.
func callerIn(request context.Context) *caller {
	if c, ok := request.Value(callerKey{}).(*caller); ok {
		return c
	}
	return &caller{unknown: errors.New("its connection was not examined")}
}

// connContext finds out who calls, once for each connection. It is a ConnContext of [http.Server].
func (g *guard) connContext(ctx context.Context, conn net.Conn) context.Context {
	if held, ok := conn.(*heldConn); ok && held.caller != nil {
		if held.brake != nil {
			ctx = held.brake.Attach(ctx)
		}
		return context.WithValue(ctx, callerKey{}, held.caller)
	}
	return context.WithValue(ctx, callerKey{}, g.identify(conn))
}

func (g *guard) isStranger(c *caller) bool { return g.roleOf(g.now(), c) == roleNone }

func (g *guard) identify(conn net.Conn) *caller {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return &caller{unknown: fmt.Errorf("a connection of type %T does not show its peer", conn)}
	}
	peer, err := sock.PeerOf(unixConn)
	if err != nil {
		return &caller{unknown: err}
	}
	c := &caller{peer: peer}
	c.groups, c.groupsErr = supplementaryGroups(unixConn)
	c.groups = append(c.groups, peer.GID)
	c.socketGroup, c.socketErr = groupOf(g.socketPath)
	return c
}

// denial is the error of a call for which a caller does not have the role.
type denial struct{ text string }

func (d *denial) Error() string { return d.text }

// GRPCStatus makes it the status of a call.
func (d *denial) GRPCStatus() *status.Status { return status.New(codes.PermissionDenied, d.text) }

func isDenial(err error) bool {
	_, ok := errors.AsType[*denial](err)
	return ok
}

func (g *guard) roleOf(p policy, c *caller) role {
	if c.unknown != nil {
		return roleNone
	}
	if c.peer.UID == 0 || c.peer.UID == g.uid {
		return roleAdmin
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

// deny says why by a policy a caller may not make a call that needs a role; nil if it may.
func (g *guard) deny(p policy, c *caller, needed role) error {
	has := g.roleOf(p, c)
	switch {
	case has >= needed:
		return nil
	case c.unknown != nil:
		return &denial{fmt.Sprintf("the caller cannot be identified: %v", c.unknown)}
	}
	text := fmt.Sprintf("user %d has the role %s on this control socket", c.peer.UID, has)
	if has == roleNone {
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
	return &denial{text}
}

// admit says why the caller of a request, whose context it is given, may not do what needs a role; nil if it may. What is denied is
// audited.
func (g *guard) admit(request context.Context, action string, needed role) error {
	c := callerIn(request)
	err := g.deny(g.now(), c, needed)
	if err != nil {
		g.audit.denied(c, action, err)
	}
	return err
}

// hold returns a context that also ends when the caller of the request loses the role that it needs; the cause then says so. Release is
// called when the call has ended.
func (g *guard) hold(request context.Context, needed role) (_ context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(request)
	c := callerIn(request)
	letGo, err := g.letIn(func(p policy) error { return g.deny(p, c, needed) }, cancel)
	if err != nil { // meanwhile
		cancel(err)
		return ctx, func() {}
	}
	return ctx, func() {
		letGo()
		cancel(nil)
	}
}

// gate refuses calls before anything of them is read. It is a [connect.RequestGateFunc].
func (g *guard) gate(ctx context.Context, spec connect.Spec, _ connect.Peer, header http.Header) (context.Context, error) {
	if errors.Is(context.Cause(ctx), server.ErrStopping) {
		return nil, connect.NewError(connect.CodeUnavailable, server.ErrStopping)
	}
	if len(header.Values(proxy.HopsKey)) > 0 { // it would have the rights of the daemon, whose connection this is
		return nil, connect.NewError(connect.CodePermissionDenied, errThroughPlugin)
	}
	if err := g.admit(ctx, actionOf(spec.Procedure), roleFor(spec.Procedure)); err != nil {
		return nil, connect.NewError(connect.CodePermissionDenied, err)
	}
	return ctx, nil
}

// WrapUnary implements [connect.Interceptor]: calls end with the role of the caller, and those that take more than to read are audited.
// Requests with too long lists are refused, and so are answers for which there is no room.
func (g *guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (response connect.AnyResponse, err error) {
		procedure := request.Spec().Procedure
		err = g.guarded(ctx, procedure, targetOf(request.Any()), func(ctx context.Context) (err error) {
			if err := checkLists(request.Any()); err != nil {
				return err
			}
			if response, err = next(ctx, request); err != nil {
				return err
			}
			return countAnswer(ctx, procedure, response.Any())
		})
		if err != nil {
			return nil, err
		}
		return response, nil
	}
}

// WrapStreamingHandler implements [connect.Interceptor]: as WrapUnary, but what is sent counts itself, with countList.
func (g *guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, stream connect.StreamingHandlerConn) error {
		return g.guarded(ctx, stream.Spec().Procedure, "", func(ctx context.Context) error { return next(ctx, filteredStream{stream}) })
	}
}

func (g *guard) guarded(ctx context.Context, procedure, target string, call func(context.Context) error) error {
	needed := roleFor(procedure)
	held, release := g.hold(ctx, needed)
	defer release()
	err := call(held)
	if needed > roleRead {
		g.audit.done(callerIn(ctx), actionOf(procedure), target, err)
	}
	return err
}

// WrapStreamingClient implements [connect.Interceptor]; the daemon is no client of its own.
func (g *guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func groupOf(socket string) (uint32, error) {
	info, err := sock.Stat(socket)
	if err != nil {
		return 0, fmt.Errorf("the socket's group is not known: %w", err)
	}
	if !info.IsSocket() {
		return 0, &fs.PathError{Op: "stat", Path: socket, Err: errors.New("not a socket")}
	}
	return info.GID, nil
}

// patterns are those of one key of a rule.
type patterns struct {
	key  string
	list []string
}

func validatePatterns(parts []patterns) error {
	for _, part := range parts {
		if len(part.list) == 0 || slices.Contains(part.list, "") {
			return fmt.Errorf(`%s is empty and would allow nothing: name what is allowed, or "*" for everything`, part.key)
		}
		for _, pattern := range part.list {
			if _, err := path.Match(pattern, ""); err != nil {
				return fmt.Errorf("%s has %q, which is no pattern: %w", part.key, pattern, err)
			}
		}
	}
	return nil
}

func matchAny(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		matched, err := path.Match(pattern, text)
		return pattern == "*" || err == nil && matched
	})
}
