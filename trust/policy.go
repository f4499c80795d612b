package trust

import (
	"fmt"
	"maps"
	"os/user"
	"strconv"
)

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

// accounts are users and groups by their numbers.
type accounts struct{ users, groups map[uint32]bool }

func (a accounts) has(uid, gid uint32) bool { return a.users[uid] || a.groups[gid] }

func (a accounts) add(other accounts) {
	maps.Copy(a.users, other.users)
	maps.Copy(a.groups, other.groups)
}

// FieldError reports an unknown user or group in a [Policy], or a key of its types that is not a plugin type.
type FieldError struct {
	// Field is the path of the list that names it, below the policy: "owners.users" or "types.CSIPlugin.groups"; or that of the type.
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

func (e *FieldError) Unwrap() error { return e.Err }

// Resolve looks the users and groups up. There is a [*FieldError] for each that is not known; path is that of the accounts.
func (a Accounts) Resolve(path string) (users, groups map[uint32]bool, unknown []error) {
	users, unknown = numbers(path+".users", a.Users, uidOf)
	groups, unknownGroups := numbers(path+".groups", a.Groups, gidOf)
	return users, groups, append(unknown, unknownGroups...)
}

func uidOf(name string) (string, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return "", err
	}
	return u.Uid, nil
}

func gidOf(name string) (string, error) {
	g, err := user.LookupGroup(name)
	if err != nil {
		return "", err
	}
	return g.Gid, nil
}

func numbers(path string, names []string, lookUp func(string) (string, error)) (map[uint32]bool, []error) {
	ids := map[uint32]bool{}
	var wrong []error
	for _, name := range names {
		id, isID := parseID(name)
		if !isID {
			number, err := lookUp(name)
			if id, isID = parseID(number); err != nil || !isID {
				err = fmt.Errorf("%q is not known on this machine: %w; use a known name, or a number", name, err)
				wrong = append(wrong, &FieldError{path, err})
				continue
			}
		}
		ids[id] = true
	}
	return ids, wrong
}

// parseID reads a user or group number. The highest one means "nobody in particular" to the system.
func parseID(s string) (uint32, bool) {
	const none = 1<<32 - 1
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != none
}
