package dynamicplugins

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/patchbay-dev/patchbay/cache"
	"github.com/patchbay-dev/patchbay/internal/sock"
)

// PluginRecord is what a host that finds plugins itself knows of an instance beyond the rest of its PluginInfo. The registry keeps it
// and does not look at it. What it says is read by whoever has to know the plugin again after a restart.
type PluginRecord struct {
	// RoleOf is the type of the plugin, in entries that are roles of it; they have nothing else but Account and Socket.
	RoleOf string
	// Roles are the further types under which the instance is registered.
	Roles []string
	// SocketPath and Socket are those of its registration service, Peer is the process that serves there.
	SocketPath string
	Socket     cache.SocketID
	Peer       PluginPeer
	// Account is whose plugin it is; nil if that is not known.
	Account *PluginAccount
	// Versions are those that it announced.
	Versions []string
	// Source says how it came.
	Source string
	// Rank orders the instances of one type and name, the newest highest; zero is none.
	Rank uint64
	// RegisteredAt is when it was registered first.
	RegisteredAt time.Time
	// EndpointWatched says that its handler asked to be told when nobody accepts on its endpoint.
	EndpointWatched bool
	// Damage says what of it could not be read from the storage.
	Damage error
}

// PluginPeer names a process by its number, its start time in clock ticks since boot, and the boot. The zero value is one that cannot
// be seen.
type PluginPeer struct {
	PID       int
	StartTime uint64
	Boot      string
}

// PluginAccount is a user and a group.
type PluginAccount struct{ UID, GID uint32 }

func (r *PluginRecord) clone() *PluginRecord {
	if r == nil {
		return nil
	}
	c := *r
	c.Roles, c.Versions = slices.Clone(r.Roles), slices.Clone(r.Versions)
	if r.Account != nil {
		account := *r.Account
		c.Account = &account
	}
	return &c
}

func (r *PluginRecord) equal(other *PluginRecord) bool {
	if r == nil || other == nil {
		return r == other
	}
	a, b := *r, *other
	a.Damage, b.Damage = nil, nil    // which is of the storage, and not of the instance
	return reflect.DeepEqual(&a, &b) //nolint:govet // neither has an error
}

// In a storage a record is options of the instance, as it was from the beginning: a stranger's storage need not know of records, and
// an older program reads what this one saved. These are their keys; nothing else has anything to do with them.
const (
	recordOptions = "patchbay.dev/" // begins them all

	optionSocketPath      = recordOptions + "socket-path"
	optionSocketID        = recordOptions + "socket-id"
	optionPeer            = recordOptions + "peer"
	optionAccount         = recordOptions + "account"
	optionVersions        = recordOptions + "versions"
	optionSource          = recordOptions + "source"
	optionRank            = recordOptions + "rank"
	optionRegisteredAt    = recordOptions + "registered-at"
	optionRoles           = recordOptions + "roles"
	optionRoleOf          = recordOptions + "role-of"
	optionEndpointWatched = recordOptions + "endpoint-watched"
)

func ofRecord(option, _ string) bool { return strings.HasPrefix(option, recordOptions) }

// toStored returns an instance as it is put into a storage.
func toStored(p *PluginInfo) *PluginInfo {
	r := p.Record
	if r == nil {
		return p
	}
	stored := *p
	stored.Record = nil
	stored.Options = make(map[string]string, len(p.Options)+8)
	maps.Copy(stored.Options, p.Options)
	maps.DeleteFunc(stored.Options, ofRecord) // nobody can make any up
	set := func(option, value string) { stored.Options[option] = value }
	set(optionAccount, formatAccount(r.Account))
	set(optionSocketID, sock.ID(r.Socket).String())
	if r.RoleOf != "" {
		set(optionRoleOf, r.RoleOf)
		return &stored
	}
	set(optionSocketPath, r.SocketPath)
	set(optionPeer, formatPeer(r.Peer))
	set(optionVersions, formatList(r.Versions))
	set(optionSource, r.Source)
	set(optionRegisteredAt, r.RegisteredAt.UTC().Format(time.RFC3339Nano))
	if r.Rank != 0 {
		set(optionRank, strconv.FormatUint(r.Rank, 10))
	}
	if len(r.Roles) > 0 {
		set(optionRoles, formatList(r.Roles))
	}
	if r.EndpointWatched {
		set(optionEndpointWatched, "true")
	}
	return &stored
}

// fromStored is the reverse of toStored. It returns an instance of its own.
func fromStored(p *PluginInfo) *PluginInfo {
	p = p.clone()
	stored := maps.Clone(p.Options)
	maps.DeleteFunc(p.Options, ofRecord)
	if len(p.Options) == len(stored) {
		return p
	}
	if len(p.Options) == 0 {
		p.Options = nil
	}
	r := &PluginRecord{
		RoleOf: stored[optionRoleOf], SocketPath: stored[optionSocketPath], Source: stored[optionSource],
		EndpointWatched: stored[optionEndpointWatched] != "",
	}
	var wrong [7]error
	var id sock.ID
	id, wrong[0] = sock.ParseID(stored[optionSocketID])
	r.Socket = cache.SocketID(id)
	r.Account, wrong[1] = parseAccount(stored[optionAccount])
	if r.RoleOf == "" {
		r.Peer, wrong[2] = parsePeer(stored[optionPeer])
		r.Versions, wrong[3] = parseList(stored[optionVersions])
		r.Rank, wrong[4] = parseRank(stored[optionRank])
		r.RegisteredAt, wrong[5] = time.Parse(time.RFC3339Nano, stored[optionRegisteredAt])
		r.Roles, wrong[6] = parseList(stored[optionRoles])
	}
	r.Damage = errors.Join(wrong[:]...)
	p.Record = r
	return p
}

func formatList(list []string) string {
	b, err := json.Marshal(list)
	if err != nil {
		return "" // Strings cannot fail to marshal.
	}
	return string(b)
}

func parseList(s string) (list []string, err error) {
	if s != "" {
		err = json.Unmarshal([]byte(s), &list)
	}
	return list, err
}

func parseRank(s string) (uint64, error) {
	if s == "" {
		return 0, nil // of an older host
	}
	rank, err := strconv.ParseUint(s, 10, 63) // which leaves room for greater ones
	if err != nil {
		return 0, fmt.Errorf("rank %q is not a number below 2⁶³: %w", s, err)
	}
	return rank, nil
}

func formatAccount(a *PluginAccount) string {
	if a == nil {
		return ""
	}
	return strconv.FormatUint(uint64(a.UID), 10) + " " + strconv.FormatUint(uint64(a.GID), 10)
}

func parseAccount(s string) (*PluginAccount, error) {
	if s == "" {
		return nil, nil //nolint:nilnil // of an older host, or of a system that does not say
	}
	account := &PluginAccount{}
	_, err := fmt.Sscanf(s, "%d %d", &account.UID, &account.GID)
	if err != nil || formatAccount(account) != s {
		return nil, fmt.Errorf("account %q is not of the form UID GID", s)
	}
	return account, nil
}

func formatPeer(p PluginPeer) string {
	if p == (PluginPeer{}) {
		return ""
	}
	return strconv.Itoa(p.PID) + " " + strconv.FormatUint(p.StartTime, 10) + " " + p.Boot
}

func parsePeer(s string) (PluginPeer, error) {
	if s == "" {
		return PluginPeer{}, nil
	}
	var p PluginPeer
	_, err := fmt.Sscanf(s, "%d %d ", &p.PID, &p.StartTime)
	p.Boot = s[strings.LastIndexByte(s, ' ')+1:] // empty where a boot has no name
	if err != nil || formatPeer(p) != s {
		return PluginPeer{}, fmt.Errorf("peer %q is not of the form PID START BOOT", s)
	}
	return p, nil
}
