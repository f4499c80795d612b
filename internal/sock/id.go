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

// Peer is the process at the other end of a connection. For one that was made with [Dial] that is the process which called listen, which
// may differ from the one that accepts (socket activation, inherited sockets). It is comparable.
type Peer struct {
	// PID is zero if the process cannot be seen from here: it lives in another PID namespace, or the system does not say.
	PID int
	// Start says which of the processes that get the number PID it is: together with [BootID] they name a process for good. It is zero if PID
	// is, or if the process is gone already. See [Start].
	Start    uint64
	UID, GID uint32
}
