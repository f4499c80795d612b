package trustjudge

import (
	"fmt"
	"maps"
	"os/user"
	"strconv"

	"github.com/patchbay-dev/patchbay/trust"
)

// accounts are users and groups by their numbers.
type accounts struct{ users, groups map[uint32]bool }

func (a accounts) has(uid, gid uint32) bool { return a.users[uid] || a.groups[gid] }

func (a accounts) add(other accounts) {
	maps.Copy(a.users, other.users)
	maps.Copy(a.groups, other.groups)
}

// FieldError reports an unknown user or group in a [trust.Policy], or a key of its types that is not a plugin type.
type FieldError struct {
	// Field is the path of the list that names it, below the policy: "owners.users" or "types.CSIPlugin.groups"; or that of the type.
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

func (e *FieldError) Unwrap() error { return e.Err }

// Resolve looks up users and groups. It returns a [*FieldError] for each that is not known; path is that of the accounts.
func Resolve(a trust.Accounts, path string) (users, groups map[uint32]bool, unknown []error) {
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
