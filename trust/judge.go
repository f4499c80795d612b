package trust

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"runtime"
	"slices"
	"time"
)

const (
	byGroup  = 0o020
	byOthers = 0o002
)

// Judge applies a [Policy]. It does not change: its methods are safe for concurrent use, and block on nothing. Their errors are of type
// [*Refusal].
type Judge struct {
	uid, gid uint32 // of the host
	blind    bool   // the system has no owners
	owners   accounts
	types    map[string]judgedType
	all      accounts // owners, and those of all types
	sticky   bool
}

type judgedType struct {
	accounts
	supersede bool
	endpoints map[uint32]bool
}

// Account is who answers for a plugin. The zero value is one that the system does not tell, whom everything is allowed.
type Account struct {
	UID, GID uint32
	// Known says that the others have a meaning.
	Known bool
	// Launched says that it is a plugin which the host itself launched as this user.
	Launched bool
	// Name is the one under which the host launched it, which need not be the one that the plugin announces.
	Name string
}

// New looks the users and groups of a policy up. An error joins one [FieldError] for each that is not known.
func New(p Policy) (*Judge, error) {
	j := &Judge{
		uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()), blind: runtime.GOOS == "windows",
		types: map[string]judgedType{}, sticky: p.Sticky,
		all: accounts{map[uint32]bool{}, map[uint32]bool{}},
	}
	var wrong []error
	j.owners, wrong = resolve("owners", p.Owners.Users, p.Owners.Groups)
	j.all.add(j.owners)
	for _, ptype := range slices.Sorted(maps.Keys(p.Types)) {
		t := p.Types[ptype]
		who, unknown := resolve("types."+ptype, t.Users, t.Groups)
		wrong = append(wrong, unknown...)
		endpoints, strangers := numbers("types."+ptype+".endpoints", t.Endpoints, uidOf)
		wrong = append(wrong, strangers...)
		j.types[ptype] = judgedType{who, t.Supersede, endpoints}
		j.all.add(who)
	}
	return j, errors.Join(wrong...)
}

// Default returns the Judge of the zero Policy.
func Default() *Judge {
	j, err := New(Policy{})
	if err != nil {
		panic(err) // it names nobody
	}
	return j
}

// Privileged says whether a user is root or that of the host, whom everything is allowed.
func (j *Judge) Privileged(uid uint32) bool { return j.blind || uid == 0 || uid == j.uid }

// Alone says that root and the host's user are the only ones who are trusted: nobody else can be where the host looks.
func (j *Judge) Alone() bool { return len(j.all.users)+len(j.all.groups) == 0 && !j.sticky }

// trusts says whether a user, or whoever has this effective group, may own sockets.
func (j *Judge) trusts(uid, gid uint32) bool { return j.Privileged(uid) || j.all.has(uid, gid) }

// Directory says whether what lies in a directory may be used. What it is asked of is the directory itself, not a link to it.
func (j *Judge) Directory(path string, mode fs.FileMode, uid, gid uint32) error {
	if j.blind {
		return nil
	}
	// A group says little of who made a file: in a directory with the setgid bit anybody's have its group.
	if !j.Privileged(uid) && !j.all.users[uid] {
		return &Refusal{DirectoryOwner,
			fmt.Sprintf("directory %s belongs to user %d, who could put any socket there", path, uid),
			fmt.Sprintf("chown it to root or to user %d, or name the user in trust.owners.users", j.uid)}
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
	return &Refusal{Writable, fmt.Sprintf("directory %s may be written by %s (mode %s): whoever can write it can pose as any plugin",
		path, who, octal(mode)), remedy}
}

// Socket says whether a socket may be used, as far as its file shows. Who listens on it is asked of [Judge.Listener].
func (j *Judge) Socket(path string, uid, gid uint32) error {
	if j.trusts(uid, gid) {
		return nil
	}
	return &Refusal{SocketOwner,
		fmt.Sprintf("socket %s belongs to user %d, who is neither root nor user %d of this process, nor configured", path, uid, j.uid),
		"run the plugin as one of these, or name its user in trust.owners.users or in trust.types"}
}

// Link refuses a symbolic link.
func (j *Judge) Link(path string) error {
	return &Refusal{Link, path + " is a symbolic link, which is not followed", "put the socket itself there, or remove the link"}
}

// Listener says whether who listens on a socket may do so.
func (j *Judge) Listener(path string, uid, gid uint32) error {
	if j.trusts(uid, gid) {
		return nil
	}
	return &Refusal{Listener,
		fmt.Sprintf("the process behind socket %s runs as user %d and group %d, and neither is trusted", path, uid, gid),
		"run the plugin as root or as user " + fmt.Sprint(j.uid) + ", or name its user in trust.owners.users or in trust.types"}
}

// Type says whether somebody may register plugins of a type.
func (j *Judge) Type(ptype string, by Account) error {
	if !by.Known || j.Privileged(by.UID) {
		return nil
	}
	t, named := j.types[ptype]
	if named && t.has(by.UID, by.GID) || !named && (by.Launched || j.owners.has(by.UID, by.GID)) {
		return nil
	}
	return &Refusal{PluginType, fmt.Sprintf("user %d may not register plugins of type %s", by.UID, ptype),
		fmt.Sprintf("name the user in trust.types.%s.users if this is meant", ptype)}
}

// Endpoint says whether somebody's plugin of a type may have a socket as its endpoint that is a user's, or on which that user listens.
// The host connects to it, and has others call there: it must not lend its rights to who has none at that socket.
func (j *Judge) Endpoint(ptype, path string, by Account, uid uint32) error {
	if !by.Known || by.UID == uid || j.Privileged(by.UID) || j.types[ptype].endpoints[uid] {
		return nil
	}
	return &Refusal{Endpoint,
		fmt.Sprintf("the endpoint %s is user %d's, and the plugin that announces it is user %d's, who may have no right to call there", path, uid,
			by.UID), fmt.Sprintf("serve the endpoint as the user of the plugin, or name user %d in trust.types.%s.endpoints if this is meant",
			uid, ptype)}
}

// Own says whether somebody's plugin may have an endpoint to which the host has a connection of its own making.
func (j *Judge) Own(ptype, path string, by Account) error {
	if !by.Known || j.Privileged(by.UID) {
		return nil
	}
	return &Refusal{Endpoint, fmt.Sprintf("the endpoint %s is the host's own, and the plugin of type %s that announces it is user %d's", path,
		ptype, by.UID), "serve the endpoint as the user of the plugin"}
}

// Supersede says whether a plugin of one may take the name of another's that lives.
func (j *Judge) Supersede(ptype, name string, by, other Account) error {
	if !by.Known || !other.Known || by.UID == other.UID || j.Privileged(by.UID) || j.types[ptype].supersede {
		return nil
	}
	return &Refusal{Name, fmt.Sprintf("the name %s of type %s is that of a plugin of user %d, and user %d may not take it", name, ptype,
		other.UID, by.UID), fmt.Sprintf("end that plugin, choose another name, or set trust.types.%s.supersede", ptype)}
}

// KeepsNames says whether the names of somebody's plugins of a type are his for a time after the last of them has gone.
func (j *Judge) KeepsNames(ptype string, by Account) bool {
	return by.Known && !j.blind && !j.types[ptype].supersede
}

// Inherit says whether a plugin of one may take a name that is kept until a time for another one, whose plugin had it last. A plugin that
// the host launches under that very name may.
func (j *Judge) Inherit(ptype, name string, by, last Account, until time.Time) error {
	last.Launched = true // as far as is known; it was registered
	free := by.Launched && by.Name == name || j.Type(ptype, last) != nil
	if free || j.Supersede(ptype, name, by, last) == nil {
		return nil
	}
	return &Refusal{Name, fmt.Sprintf("the name %s of type %s is kept for user %d, whose plugin had it last, until %s, and user %d may not "+
		"take it", name, ptype, last.UID, until.UTC().Format(time.RFC3339), by.UID),
		fmt.Sprintf("wait until then, choose another name, or let it go with \"patchbay release %s/%s\"", ptype, name)}
}

// octal writes a mode as chmod takes it.
func octal(mode fs.FileMode) string {
	bits := uint32(mode.Perm())
	for bit, value := range map[fs.FileMode]uint32{fs.ModeSticky: 0o1000, fs.ModeSetgid: 0o2000, fs.ModeSetuid: 0o4000} {
		if mode&bit != 0 {
			bits |= value
		}
	}
	return fmt.Sprintf("%04o", bits)
}
