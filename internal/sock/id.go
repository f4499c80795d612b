// Package sock is what the rest of Patchbay knows about Unix sockets: which socket is at a path ([Stat], [ID]), who serves it ([PeerOf]),
// whether anyone accepts on it ([Probe]), how to connect ([Dial]), how to own one ([Listen]), and when its peer goes ([Watcher]).
//
// It knows nothing of plugins, gRPC or directories: whoever watches a directory for sockets wants package dirwatch.
//
// All of it works on Linux. On macOS there is no watching of peers: what is missing returns an error that wraps [errors.ErrUnsupported].
package sock

import (
	"fmt"
	"io/fs"
	"strconv"
	"time"
)

// ID tells one socket from another, whatever their paths are. It is comparable. A change of mode or owner, or a rename, leaves it as it
// is; a socket that is bound anew, also at the same path and on a recycled inode number, has another one.
type ID struct {
	Device uint64
	Inode  uint64
	// Birth is the time at which the inode was made, in nanoseconds since 1970. A file system that records no birth time gives its change
	// time instead, which a change of mode, owner or name moves. A system that has neither gives zero.
	Birth int64
}

// IsZero reports whether id is that of no socket.
func (id ID) IsZero() bool { return id == ID{} }

// String returns the stable text form that [ParseID] reads: device, inode and birth, in hexadecimal, separated by dots.
func (id ID) String() string { return string(id.Append(make([]byte, 0, 3*16+2))) }

// Append appends what [ID.String] returns.
func (id ID) Append(text []byte) []byte {
	text = append(strconv.AppendUint(text, id.Device, 16), '.')
	text = append(strconv.AppendUint(text, id.Inode, 16), '.')
	return strconv.AppendUint(text, uint64(id.Birth), 16)
}

// ParseID is the inverse of [ID.String]. It accepts nothing that String does not produce.
func ParseID(s string) (ID, error) {
	var id ID
	var birth uint64
	_, err := fmt.Sscanf(s, "%x.%x.%x", &id.Device, &id.Inode, &birth)
	id.Birth = int64(birth)
	if err != nil || id.String() != s {
		return ID{}, fmt.Errorf("socket identity %q: want three hexadecimal numbers separated by dots, as they are written", s)
	}
	return id, nil
}

// Info is what [Stat] knows of a path. It is comparable.
type Info struct {
	ID   ID
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
