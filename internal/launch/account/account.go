// Package account looks up the users and groups that launched plugins run as, by name or number. It does not decide who may run as whom,
// and changes no process: packages host and process do.
package account

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
)

// Check returns an error if there is no such user or group on this machine or, with an empty group, the user has none. Empty names are
// those of this process. Whether this process may start a plugin as that user is only known at launch.
func Check(userName, group string) (badUser, badGroup error) {
	if userName != "" {
		_, _, badUser = lookUpUser(userName, group != "")
	}
	if group != "" {
		_, badGroup = lookUpGroup(group)
	}
	return badUser, badGroup
}

// UserID returns the number of a user; that of this process's user for an empty name.
func UserID(name string) (uint32, error) {
	if name == "" {
		return uint32(os.Geteuid()), nil
	}
	uid, _, err := lookUpUser(name, true)
	return uid, err
}

// IDs returns the numbers of a user and a group. For an empty user they are those of this process, and for an empty group that of the user.
func IDs(userName, group string) (uid, gid uint32, err error) {
	uid, gid = uint32(os.Geteuid()), uint32(os.Getegid())
	if userName != "" {
		uid, gid, err = lookUpUser(userName, group != "")
	}
	if err == nil && group != "" {
		gid, err = lookUpGroup(group)
	}
	return uid, gid, err
}

// lookUpUser returns a user and the user's group. A number without an account is a user without a group.
func lookUpUser(name string, hasGroup bool) (uid, gid uint32, err error) {
	found, err := user.Lookup(name)
	if number, ok := parseID(name); err != nil && ok {
		if found, err = user.LookupId(name); err != nil {
			if hasGroup {
				return number, 0, nil
			}
			return 0, 0, fmt.Errorf("it must run as user %s, who is not known here, and neither is the user's group: configure a group too", name)
		}
	}
	if err != nil {
		return 0, 0, fmt.Errorf("it must run as user %s: %w", name, err)
	}
	uid, uok := parseID(found.Uid)
	gid, gok := parseID(found.Gid)
	if !uok || !gok {
		return 0, 0, fmt.Errorf("it must run as user %s: %w", name, errors.ErrUnsupported)
	}
	return uid, gid, nil
}

func lookUpGroup(name string) (uint32, error) {
	found, err := user.LookupGroup(name)
	if err == nil {
		name = found.Gid
	}
	if gid, ok := parseID(name); ok {
		return gid, nil
	}
	return 0, fmt.Errorf("it must run as group %s: %w", name, err)
}

// parseID parses a user or group number. The highest number means "no change" to the system.
func parseID(s string) (uint32, bool) {
	const none = 1<<32 - 1
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != none
}
