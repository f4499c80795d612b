package plugin

import (
	"fmt"
	"strconv"
)

// SocketID identifies a socket in the file system, whatever its path. It is comparable. A change of mode or owner and a rename do not
// change it. A recreated socket has another one, even at the same path and with a recycled inode number.
type SocketID struct {
	Device, Inode uint64
	// Birth is when the inode was created, in nanoseconds since 1970. If the file system does not record that, it is the change time, which
	// a change of mode, owner or name moves. It is zero if the system has neither.
	Birth int64
}

// IsZero reports whether id identifies no socket.
func (id SocketID) IsZero() bool { return id == SocketID{} }

// String returns the form that [ParseSocketID] parses: device, inode and birth in hexadecimal, separated by dots.
func (id SocketID) String() string { return string(id.Append(make([]byte, 0, 3*16+2))) }

// Append appends the form that [SocketID.String] returns.
func (id SocketID) Append(text []byte) []byte {
	text = append(strconv.AppendUint(text, id.Device, 16), '.')
	text = append(strconv.AppendUint(text, id.Inode, 16), '.')
	return strconv.AppendUint(text, uint64(id.Birth), 16)
}

// ParseSocketID is the inverse of [SocketID.String]. It returns an error for every text that String does not return.
func ParseSocketID(s string) (SocketID, error) {
	var id SocketID
	var birth uint64
	_, err := fmt.Sscanf(s, "%x.%x.%x", &id.Device, &id.Inode, &birth)
	id.Birth = int64(birth)
	if err != nil || id.String() != s {
		return SocketID{}, fmt.Errorf("socket identity %q: want three hexadecimal numbers separated by dots, as they are written", s)
	}
	return id, nil
}

// Peer identifies the process at the other end of a connection. It is comparable. The zero value is a process that is not visible, for
// example in another PID namespace.
type Peer struct {
	PID int
	// Start distinguishes the processes that have the same PID one after the other, within one boot. Boot identifies the boot; it is empty
	// if the system does not name it.
	Start uint64
	Boot  string
}

// Account is the user and group responsible for a plugin. The zero value is an account that the system does not report; it may do
// everything.
type Account struct {
	UID, GID uint32
	// Known reports whether UID and GID are set.
	Known bool
	// Launched reports whether the host itself launched the plugin as this user, under Name, which may differ from the name that the plugin
	// announces.
	Launched bool
	Name     string
}
