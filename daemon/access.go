package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"

	"connectrpc.com/connect"

	"github.com/patchbay-dev/patchbay/internal/sock"
)

// errStopping is the cause of the end of every call that the daemon's stop cuts short.
var errStopping = errors.New("the daemon is stopping")

// guard admits callers of the control socket by their peer credentials: root, the user of the daemon, and the members of the
// socket's group. The mode of the socket says the same; the guard still holds when the mode was changed or does not count.
type guard struct {
	socketPath string
	// uid is the user of the daemon.
	uid uint32
}

type verdictKey struct{}

// refused says why the caller of a request, whose context it is given, was not admitted; nil if it was.
func refused(request context.Context) error {
	if v, ok := request.Value(verdictKey{}).(verdict); ok {
		return v.refused
	}
	return errors.New("the caller was not identified")
}

// connContext judges the caller once for each connection. It is a ConnContext of [http.Server].
func (g guard) connContext(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, verdictKey{}, g.judge(conn))
}

// gate refuses the calls of a connection whose caller was not admitted. It is a [connect.RequestGateFunc].
func (g guard) gate(ctx context.Context, _ connect.Spec, _ connect.Peer, _ http.Header) (context.Context, error) {
	if errors.Is(context.Cause(ctx), errStopping) {
		return nil, connect.NewError(connect.CodeUnavailable, errStopping)
	}
	if err := refused(ctx); err != nil {
		return nil, connect.NewError(connect.CodePermissionDenied, err)
	}
	return ctx, nil
}

// verdict holds why a caller is refused, nil if it is admitted.
type verdict struct{ refused error }

func (g guard) judge(conn net.Conn) verdict {
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return verdict{fmt.Errorf("the caller cannot be identified on a connection of type %T", conn)}
	}
	peer, err := sock.PeerOf(unixConn)
	if err != nil {
		return verdict{fmt.Errorf("the caller cannot be identified: %w", err)}
	}
	if peer.UID == 0 || peer.UID == g.uid {
		return verdict{}
	}
	gid, err := groupOf(g.socketPath)
	if err != nil {
		return verdict{fmt.Errorf("user %d is neither root nor the daemon's user %d, and the socket's group is not known: %w",
			peer.UID, g.uid, err)}
	}
	// The error counts only if the group that is known for certain does not admit the caller.
	groups, err := supplementaryGroups(unixConn)
	if peer.GID == gid || slices.Contains(groups, gid) {
		return verdict{}
	}
	return verdict{errors.Join(
		fmt.Errorf("user %d is neither root, nor the daemon's user %d, nor in the socket's group %d", peer.UID, g.uid, gid), err)}
}

func groupOf(path string) (uint32, error) {
	info, err := sock.Stat(path)
	if err != nil {
		return 0, err
	}
	if !info.IsSocket() {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: errors.New("not a socket")}
	}
	return info.GID, nil
}

func newGuard(socketPath string) guard {
	return guard{socketPath: socketPath, uid: uint32(os.Geteuid())}
}
