// Package trustjudge applies a trust.Policy. A [Judge] refuses plugin directories and sockets that a host must not use, and plugins that a
// user must not register, by the owners and modes that the system reports. It does not read files.
package trustjudge

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/user"
	"slices"
	"strconv"
	"time"

	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
	"github.com/patchbay-dev/patchbay/trust"
)

const (
	byGroup  = 0o020
	byOthers = 0o002
)

// Judge applies a [trust.Policy]. It is immutable; its methods are safe for concurrent use and do not block. Their errors are of type
// [*trust.Refusal].
type Judge struct {
	uid, gid uint32 // of this process
	owners   accounts
	types    map[string]judgedType
	all      accounts // owners, and the accounts of all types
	sticky   bool
}

type judgedType struct {
	accounts
	supersede bool
	endpoints map[uint32]bool
}

// New looks up the users and groups of a policy and returns its Judge. The error joins a [FieldError] for each unknown user or group, and
// for each key of Types that is not a plugin type.
func New(p trust.Policy) (*Judge, error) {
	j := &Judge{
		uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()),
		types: map[string]judgedType{}, sticky: p.Sticky,
		all: accounts{map[uint32]bool{}, map[uint32]bool{}},
	}
	users, groups, wrong := Resolve(p.Owners, "owners")
	j.owners = accounts{users, groups}
	j.all.add(j.owners)
	for _, ptype := range slices.Sorted(maps.Keys(p.Types)) {
		t := p.Types[ptype]
		if !untrusted.IsType(ptype) {
			wrong = append(wrong, &FieldError{"types." + ptype, fmt.Errorf("%q %s", ptype, untrusted.TypeSyntax)})
		}
		users, groups, unknown := Resolve(trust.Accounts{Users: t.Users, Groups: t.Groups}, "types."+ptype)
		wrong = append(wrong, unknown...)
		endpoints, strangers := numbers("types."+ptype+".endpoints", t.Endpoints, uidOf)
		wrong = append(wrong, strangers...)
		who := accounts{users, groups}
		j.types[ptype] = judgedType{who, t.Supersede, endpoints}
		j.all.add(who)
	}
	return j, errors.Join(wrong...)
}

// Default returns the Judge of the zero Policy.
func Default() *Judge {
	j, err := New(trust.Policy{})
	if err != nil {
		panic(err) // the policy names no users
	}
	return j
}

// Privileged reports whether a user is root or the host's user. They may do everything.
func (j *Judge) Privileged(uid uint32) bool { return uid == 0 || uid == j.uid }

// Alone reports whether only root and the host's user are trusted.
func (j *Judge) Alone() bool { return len(j.all.users)+len(j.all.groups) == 0 && !j.sticky }

// trusts reports whether a user, or members of a group, may own sockets.
func (j *Judge) trusts(uid, gid uint32) bool { return j.Privileged(uid) || j.all.has(uid, gid) }

// Directory refuses a directory whose content may not be used. Pass the attributes of the directory itself, not of a link to it.
func (j *Judge) Directory(path string, mode fs.FileMode, uid, gid uint32) error {
	// The group is ignored: in a directory with the setgid bit, files of all users have its group.
	if !j.Privileged(uid) && !j.all.users[uid] {
		return refuse(trust.DirectoryOwner,
			fmt.Sprintf("directory %s belongs to user %d, who could put any socket there", path, uid),
			fmt.Sprintf("chown it to root or to user %d, or name the user in trust.owners.users", j.uid))
	}
	writable := mode.Perm() & (byGroup | byOthers)
	if gid == 0 || gid == j.gid || j.all.groups[gid] {
		writable &^= byGroup
	}
	if writable == 0 || j.sticky && mode&fs.ModeSticky != 0 {
		return nil
	}
	who, remedy := "everyone", "chmod 0750 "+path
	if writable&byOthers == 0 {
		who = fmt.Sprintf("group %d", gid)
		remedy += ", or name the group in trust.owners.groups"
	}
	if mode&fs.ModeSticky != 0 {
		remedy += ", or set trust.sticky if many users are to have sockets there"
	}
	return refuse(trust.Writable, fmt.Sprintf("directory %s may be written by %s (mode %s): whoever can write it can pose as any plugin",
		path, who, octal(mode)), remedy)
}

// Socket refuses a socket whose file has an owner that is not trusted. [Judge.Listener] checks the process that listens on it.
func (j *Judge) Socket(path string, uid, gid uint32) error {
	if j.trusts(uid, gid) {
		return nil
	}
	return refuse(trust.SocketOwner,
		fmt.Sprintf("socket %s belongs to user %d, who is neither root nor user %d of this process, nor configured", path, uid, j.uid),
		"run the plugin as one of these, or name its user in trust.owners.users or in trust.types")
}

// Link refuses a symbolic link.
func (j *Judge) Link(path string) error {
	return refuse(trust.Link, path+" is a symbolic link, which is not followed", "put the socket itself there, or remove the link")
}

// Listener refuses a socket whose listener is not trusted.
func (j *Judge) Listener(path string, uid, gid uint32) error {
	if j.trusts(uid, gid) {
		return nil
	}
	return refuse(trust.Listener,
		fmt.Sprintf("the process behind socket %s runs as user %d and group %d, and neither is trusted", path, uid, gid),
		"run the plugin as root or as user "+fmt.Sprint(j.uid)+", or name its user in trust.owners.users or in trust.types")
}

// Type refuses an account that may not register plugins of a type.
func (j *Judge) Type(ptype string, by plugin.Account) error {
	if !by.Known || j.Privileged(by.UID) {
		return nil
	}
	t, named := j.types[ptype]
	if named && t.has(by.UID, by.GID) || !named && (by.Launched || j.owners.has(by.UID, by.GID)) {
		return nil
	}
	return refuse(trust.PluginType, fmt.Sprintf("user %d may not register plugins of type %s", by.UID, ptype),
		fmt.Sprintf("name the user in trust.types.%s.users if this is intended", ptype))
}

// Endpoint refuses the endpoint of an account's plugin if another user, uid, owns or listens on it. The host forwards calls to the endpoint
// with its own rights, which the account may not have.
func (j *Judge) Endpoint(ptype, path string, by plugin.Account, uid uint32) error {
	if !by.Known || by.UID == uid || j.Privileged(by.UID) || j.types[ptype].endpoints[uid] {
		return nil
	}
	return refuse(trust.Endpoint,
		fmt.Sprintf("the endpoint %s is user %d's, and the plugin that announces it is user %d's, who may have no right to call there", path, uid,
			by.UID), fmt.Sprintf("serve the endpoint as the user of the plugin, or name user %d in trust.types.%s.endpoints if this is intended",
			uid, ptype))
}

// Own refuses an endpoint to which the host connects in its own way, unless the account is privileged.
func (j *Judge) Own(ptype, path string, by plugin.Account) error {
	if !by.Known || j.Privileged(by.UID) {
		return nil
	}
	return refuse(trust.Endpoint,
		fmt.Sprintf("the endpoint %s is the host's own, and the plugin of type %s that announces it is user %d's", path, ptype, by.UID),
		"serve the endpoint as the user of the plugin")
}

// Supersede refuses a plugin whose name is that of a live plugin of another account.
func (j *Judge) Supersede(ptype, name string, by, other plugin.Account) error {
	if !by.Known || !other.Known || by.UID == other.UID || j.Privileged(by.UID) || j.types[ptype].supersede {
		return nil
	}
	return refuse(trust.Name, fmt.Sprintf("the name %s of type %s is that of a plugin of user %d, and user %d may not take it", name, ptype,
		other.UID, by.UID), fmt.Sprintf("stop that plugin, choose another name, or set trust.types.%s.supersede", ptype))
}

// ReservesNames reports whether names of a type stay reserved for an account after its last instance was removed.
func (j *Judge) ReservesNames(ptype string, by plugin.Account) bool {
	return by.Known && !j.types[ptype].supersede
}

// Inherit refuses a plugin whose name is reserved until a time for another account, unless the host launched the plugin under exactly that
// name.
func (j *Judge) Inherit(ptype, name string, by, last plugin.Account, until time.Time) error {
	last.Launched = true // whether it was launched is not known; it was registered
	free := by.Launched && by.Name == name || j.Type(ptype, last) != nil
	if free || j.Supersede(ptype, name, by, last) == nil {
		return nil
	}
	return refuse(trust.Name,
		fmt.Sprintf("the name %s of type %s is reserved for user %d, whose plugin had it last, until %s, and user %d may "+
			"not take it", name, ptype, last.UID, until.UTC().Format(time.RFC3339), by.UID),
		fmt.Sprintf("wait until then, choose another name, or free it with \"patchbay release %s/%s\"", ptype, name))
}

func refuse(reason trust.Reason, problem, remedy string) error {
	return &trust.Refusal{Reason: reason, Problem: problem, Remedy: remedy}
}

// octal formats a mode as for chmod.
func octal(mode fs.FileMode) string {
	bits := uint32(mode.Perm())
	for bit, value := range map[fs.FileMode]uint32{fs.ModeSticky: 0o1000, fs.ModeSetgid: 0o2000, fs.ModeSetuid: 0o4000} {
		if mode&bit != 0 {
			bits |= value
		}
	}
	return fmt.Sprintf("%04o", bits)
}

// accounts has users and groups by number.
type accounts struct{ users, groups map[uint32]bool }

func (a accounts) has(uid, gid uint32) bool { return a.users[uid] || a.groups[gid] }

func (a accounts) add(other accounts) {
	maps.Copy(a.users, other.users)
	maps.Copy(a.groups, other.groups)
}

// FieldError reports an unknown user or group in a [trust.Policy], or a key of its types that is not a plugin type.
type FieldError struct {
	// Field is the path of the list or type within the policy, for example "owners.users" or "types.CSIPlugin.groups".
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }

func (e *FieldError) Unwrap() error { return e.Err }

// Resolve looks up users and groups. It returns a [*FieldError] for each unknown one; path is that of the accounts.
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

// parseID parses a user or group number. The highest number is not valid: the system uses it for "no account".
func parseID(s string) (uint32, bool) {
	const none = 1<<32 - 1
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != none
}
