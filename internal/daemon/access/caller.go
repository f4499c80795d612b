package access

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// Caller is the process at the other end of a connection, with its credentials at the time it connected.
type Caller struct {
	peer sock.Credentials
	// unknown is why the caller cannot be identified; nil if it can.
	unknown error
	// groups are the groups of the process that are certain; groupsErr is why others are not known.
	groups    []uint32
	groupsErr error
	// socketGroup is the group of the control socket; socketErr is why it is not known.
	socketGroup uint32
	socketErr   error
}

// UnknownUser is the number for callers that cannot be identified. It is not a valid user ID.
const UnknownUser = math.MaxUint32

// UID returns the user of the caller, or [UnknownUser].
func (c *Caller) UID() uint32 {
	if c.unknown != nil {
		return UnknownUser
	}
	return c.peer.UID
}

type callerKey struct{}

// WithCaller returns a context for requests of a caller.
func WithCaller(ctx context.Context, c *Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// NewCaller returns a caller with the peer credentials of its connection.
func NewCaller(peer sock.Credentials) *Caller { return &Caller{peer: peer} }

// CallerOf returns the caller of the request with the given context.
func CallerOf(request context.Context) *Caller {
	if c, ok := request.Value(callerKey{}).(*Caller); ok {
		return c
	}
	return &Caller{unknown: errors.New("its connection was not examined")}
}

// Key implements [Actor].
func (c *Caller) Key() string { return fmt.Sprint(c.peer.UID, c.unknown == nil) }

func (c *Caller) String() string {
	if c.unknown != nil {
		return "somebody unknown"
	}
	return fmt.Sprintf("user %d, group %d, process %d", c.peer.UID, c.peer.GID, c.peer.PID)
}

// Attrs implements [Actor].
func (c *Caller) Attrs() []any { return []any{"uid", c.peer.UID, "gid", c.peer.GID, "pid", c.peer.PID} }

// Identify returns the caller at the other end of a connection.
func (a *Authorizer) Identify(conn net.Conn) *Caller {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return &Caller{unknown: fmt.Errorf("a connection of type %T does not show its peer", conn)}
	}
	peer, err := sock.PeerOf(unixConn)
	if err != nil {
		return &Caller{unknown: err}
	}
	c := NewCaller(peer)
	c.groups, c.groupsErr = supplementaryGroups(unixConn)
	c.groups = append(c.groups, peer.GID)
	c.socketGroup, c.socketErr = groupOf(a.socketPath)
	return c
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
