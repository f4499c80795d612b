// Package trust says whose plugin directories and sockets a host uses, and which users may register which plugin types: a [Policy] goes in,
// and a [Refusal] is the error for what is not trusted. Without a Policy, only root and the host's user are trusted.
//
// It holds only the rules and the refusals; the host decides, when it finds a plugin.
package trust

// Reason says in one word why something is refused.
type Reason string

// The reasons.
const (
	// Writable: a directory in which others may replace what is there.
	Writable Reason = "writable"
	// DirectoryOwner: a directory of a user who is not trusted.
	DirectoryOwner Reason = "directory-owner"
	// SocketOwner: a socket of a user who is not trusted.
	SocketOwner Reason = "socket-owner"
	// Link: a symbolic link.
	Link Reason = "link"
	// Denied: a socket that the host may not open.
	Denied Reason = "denied"
	// Listener: a socket on which a user listens who is not trusted.
	Listener Reason = "listener"
	// Endpoint: a plugin that announces, as its endpoint, a socket of another user.
	Endpoint Reason = "endpoint"
	// PluginType: a plugin of a type that its user may not register.
	PluginType Reason = "type"
	// Directories: directories of a user who has too many of them.
	Directories Reason = "directories"
	// Announcements: a plugin of a user whose plugins announce too much.
	Announcements Reason = "announcements"
	// NotLaunched: a plugin that the host did not launch, where only such are registered.
	NotLaunched Reason = "not-launched"
	// Name: a plugin with the name of one that belongs to another user and lives.
	Name Reason = "name"
)

// Refusal is the error for what is not trusted.
type Refusal struct {
	Reason Reason
	// Problem says what is wrong, Remedy what to do about it, each in one line.
	Problem, Remedy string
}

func (r *Refusal) Error() string { return r.Problem + "; " + r.Remedy }
