// Package trust has the rules for plugin directories, sockets and users: a [Policy] lists the trusted users and the plugin types that they
// may register, and a [Refusal] is the error for anything else. Without a Policy, only root and the host's user are trusted.
//
// The package only defines them; the host applies the rules when it finds a plugin.
package trust

// Policy lists the users that are trusted in addition to root and the host's user. Users and groups are names or numbers.
type Policy struct {
	// Owners may have sockets in a plugin directory, and their users may own directories there. They may register plugins of every type that
	// has no entry in types.
	Owners Accounts `json:"owners"`
	// Types list, by plugin type, the users that may register plugins of the type, in addition to root and the host's user. They may also
	// have sockets and directories.
	Types map[string]Type `json:"types"`
	// Sticky accepts a plugin directory that others may write to if it has the sticky bit (for example mode 1777). Everybody can create
	// sockets there; only those of trusted users are used.
	Sticky bool `json:"sticky"`
}

// Accounts are users and groups. Only the effective group of a process counts.
type Accounts struct {
	// Users are names, or numbers in quotes.
	Users []string `json:"users"`
	// Groups are names, or numbers in quotes. They may also have write permission on plugin directories.
	Groups []string `json:"groups"`
}

// Type lists the users that may register plugins of a type.
type Type struct {
	// Users are names, or numbers in quotes.
	Users []string `json:"users"`
	// Groups are names, or numbers in quotes.
	Groups []string `json:"groups"`
	// Supersede lets plugins of different users supersede each other under one name. Otherwise, while one user's plugin of a name is alive,
	// and for a time after, plugins of other users, except root's and the host's own, are refused that name.
	Supersede bool `json:"supersede"`
	// Endpoints are additional users, as names or as numbers in quotes, whose sockets plugins of the type may announce as endpoints. Otherwise
	// a plugin may announce only sockets of its own user; one of root or of the host's user may announce any.
	Endpoints []string `json:"endpoints"`
}

// Reason is one word for the cause of a refusal.
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
	// Name: a plugin whose name belongs to a running plugin of another user.
	Name Reason = "name"
)

// Refusal is the error for a directory, socket or plugin that is not trusted.
type Refusal struct {
	Reason Reason
	// Problem is the cause, and Remedy is what to do about it, each in one line.
	Problem, Remedy string
}

func (r *Refusal) Error() string { return r.Problem + "; " + r.Remedy }
