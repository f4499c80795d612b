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

	"github.com/patchbay-dev/patchbay/plugin"
)

// PluginRecord is what a host that discovers plugins knows of an instance in addition to its PluginInfo. The registry stores it without
// interpreting it. The host reads it to recognise the plugin after a restart.
type PluginRecord struct {
	// RoleOf is the type of the plugin, in entries for its roles; besides it, they have only Account and Socket.
	RoleOf string
	// Roles are the further types under which the instance is registered.
	Roles []string
	// SocketPath and Socket are those of its registration service, Peer is the process that serves there.
	SocketPath string
	Socket     plugin.SocketID
	Peer       plugin.Peer
	// Account is the user and group who answer for the plugin; nil if they are not known.
	Account *PluginAccount
	// Versions are the versions that it announced.
	Versions []string
	// Source says how it came to the host.
	Source string
	// Rank orders the instances of one type and name, the newest highest; zero is none.
	Rank uint64
	// RegisteredAt is when it was registered first.
	RegisteredAt time.Time
	// EndpointWatched means that its handler wants its endpoint to be watched.
	EndpointWatched bool
	// Damage says which part of it could not be read from the storage.
	Damage error
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
	maps.DeleteFunc(stored.Options, ofRecord)                          // nobody can make any up
	text := optionText{make([]byte, 0, 256), make([]optionEnd, 0, 10)} // on the stack
	text = text.add(optionAccount, appendAccount(text.values, r.Account))
	text = text.add(optionSocketID, r.Socket.Append(text.values))
	if r.RoleOf != "" {
		stored.Options[optionRoleOf] = r.RoleOf
		text.copyTo(stored.Options)
		return &stored
	}
	stored.Options[optionSocketPath] = r.SocketPath
	text = text.add(optionPeer, appendPeer(text.values, r.Peer))
	text = text.add(optionVersions, appendList(text.values, r.Versions))
	stored.Options[optionSource] = r.Source
	text = text.add(optionRegisteredAt, r.RegisteredAt.UTC().AppendFormat(text.values, time.RFC3339Nano))
	if r.Rank != 0 {
		text = text.add(optionRank, strconv.AppendUint(text.values, r.Rank, 10))
	}
	if len(r.Roles) > 0 {
		text = text.add(optionRoles, appendList(text.values, r.Roles))
	}
	if r.EndpointWatched {
		stored.Options[optionEndpointWatched] = "true"
	}
	text.copyTo(stored.Options)
	return &stored
}

// optionText holds the concatenated values of options, so that they share one string: many registrations become measurably cheaper.
type optionText struct {
	values  []byte
	options []optionEnd
}

type optionEnd struct {
	option string
	end    int
}

// add adds an option, whose value was appended to t.values.
func (t optionText) add(option string, values []byte) optionText {
	return optionText{values, append(t.options, optionEnd{option, len(values)})}
}

func (t optionText) copyTo(options map[string]string) {
	values, begin := string(t.values), 0
	for _, o := range t.options {
		options[o.option] = values[begin:o.end]
		begin = o.end
	}
}

// fromStored reverses toStored and returns a copy.
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
	var id plugin.SocketID
	id, wrong[0] = plugin.ParseSocketID(stored[optionSocketID])
	r.Socket = id
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

// appendList appends a list as JSON. What needs no escaping, as nearly all versions and roles, does without encoding/json, whose depth has
// the stack of a new goroutine grow: that takes longer than all the rest of [toStored].
func appendList(b []byte, list []string) []byte {
	if list == nil || slices.ContainsFunc(list, needsEscape) {
		text, err := json.Marshal(list)
		if err != nil {
			return b // Strings cannot fail to marshal.
		}
		return append(b, text...)
	}
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), s...), '"')
	}
	return append(b, ']')
}

func needsEscape(s string) bool {
	return strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' || strings.ContainsRune(`"\<>&`, c) })
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

func appendAccount(b []byte, a *PluginAccount) []byte {
	if a == nil {
		return b
	}
	b = append(strconv.AppendUint(b, uint64(a.UID), 10), ' ')
	return strconv.AppendUint(b, uint64(a.GID), 10)
}

func parseAccount(s string) (*PluginAccount, error) {
	if s == "" {
		return nil, nil //nolint:nilnil // of an older host, or of a system that does not say
	}
	account := &PluginAccount{}
	_, err := fmt.Sscanf(s, "%d %d", &account.UID, &account.GID)
	if err != nil || string(appendAccount(nil, account)) != s {
		return nil, fmt.Errorf("account %q is not of the form UID GID", s)
	}
	return account, nil
}

func appendPeer(b []byte, p plugin.Peer) []byte {
	if p == (plugin.Peer{}) {
		return b
	}
	b = append(strconv.AppendInt(b, int64(p.PID), 10), ' ')
	b = append(strconv.AppendUint(b, p.Start, 10), ' ')
	return append(b, p.Boot...)
}

func parsePeer(s string) (plugin.Peer, error) {
	if s == "" {
		return plugin.Peer{}, nil
	}
	var p plugin.Peer
	_, err := fmt.Sscanf(s, "%d %d ", &p.PID, &p.Start)
	p.Boot = s[strings.LastIndexByte(s, ' ')+1:] // empty where a boot has no name
	if err != nil || string(appendPeer(nil, p)) != s {
		return plugin.Peer{}, fmt.Errorf("peer %q is not of the form PID START BOOT", s)
	}
	return p, nil
}
