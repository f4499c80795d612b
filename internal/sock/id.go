// Package sock is what the rest of Patchbay knows about Unix sockets: which socket is at a path ([Stat]), who serves it ([PeerOf]),
// whether anyone accepts on it ([Probe]), how to connect ([Dial]), how to own one ([Listen]), and when its peer goes ([Watcher]).
//
// It knows nothing of plugins, gRPC or directories: whoever watches a directory for sockets wants package dirwatch.
//
// All of it works on Linux. On macOS there is no watching of peers: what is missing returns an error that wraps [errors.ErrUnsupported].
package sock

import (
	"io/fs"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// Info is what [Stat] knows of a path. It is comparable.
type Info struct {
	ID   plugin.SocketID
	Mode fs.FileMode // type and permission bits
	UID  uint32
	GID  uint32
	born bool // ID.Birth is the time of birth, which nothing moves
}

// Entry is what [StatEntry] returns.
type Entry struct {
	Info
	ModTime time.Time
	// Mount is the number of the mount, which tells it from one that was there before; zero if the system has none.
	Mount uint64
	// IsMountPoint reports whether a file system is mounted there, as far as the system says.
	IsMountPoint bool
}

// IsSocket reports whether the path is a socket.
func (i Info) IsSocket() bool { return i.Mode&fs.ModeSocket != 0 }

// Credentials are the process at the other end of a connection, its user and its group. For a connection that was made with [Dial], that is
// the process which called listen; it may differ from the one that accepts (socket activation, inherited sockets). They are comparable.
type Credentials struct {
	// Peer has no PID if the process is not visible, for example in another PID namespace, and no Start if it has exited.
	plugin.Peer
	UID, GID uint32
}
