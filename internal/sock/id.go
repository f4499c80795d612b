// Package sock works with Unix sockets: it identifies the socket at a path ([Stat]) and the process that serves it ([PeerOf]), checks that
// a process accepts ([Probe]), connects ([Dial]), listens ([Listen]), and watches peers ([Watcher]).
//
// On macOS, peers cannot be watched. Functions that are not available return an error that wraps [errors.ErrUnsupported].
package sock

import (
	"io/fs"
	"time"

	"github.com/patchbay-dev/patchbay/plugin"
)

// Info describes a file. It is comparable.
type Info struct {
	ID   plugin.SocketID
	Mode fs.FileMode // type and permission bits
	UID  uint32
	GID  uint32
	born bool // ID.Birth is the time of birth, which does not change
}

// Entry describes a file in more detail than [Info].
type Entry struct {
	Info
	ModTime time.Time
	// Mount identifies the mount; zero if the system has no such number.
	Mount uint64
	// IsMountPoint reports whether a file system is mounted at the path, if the system reports that.
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
