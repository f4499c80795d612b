package trust

// Policy says who is trusted besides root and the host's user. Users and groups are names or numbers.
type Policy struct {
	// Owners may have sockets in a plugin directory, and their users may own directories there. They may register plugins of every type that
	// has no entry in types.
	Owners Accounts `json:"owners"`
	// Types say, for a plugin type, who besides root and the host's user may register plugins of it; nobody else may. Those named may have
	// sockets and directories too.
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

// Type says who may register plugins of a type.
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
