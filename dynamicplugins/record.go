package dynamicplugins

import (
	"cmp"
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

// sameInstance reports whether two instances have the same stored form.
func sameInstance(a, b *plugin.Instance) bool {
	if a == nil || b == nil {
		return a == b
	}
	x, y := *a, *b
	x.Account.Launched, x.Account.Name = y.Account.Launched, y.Account.Name // not stored
	return reflect.DeepEqual(&x, &y)
}

// An instance is stored as these options of its PluginInfo, so that every StateStorage can store it.
const (
	recordOptions = "patchbay.dev/"

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

// toStored returns the stored form of a PluginInfo.
func toStored(p *PluginInfo) *PluginInfo {
	in := p.Instance
	if in == nil {
		return p
	}
	stored := *p
	stored.Instance, stored.Damage = nil, nil
	stored.Options = make(map[string]string, len(p.Options)+8)
	maps.Copy(stored.Options, p.Options)
	maps.DeleteFunc(stored.Options, ofRecord)                          // which a handler must not set
	text := optionText{make([]byte, 0, 256), make([]optionEnd, 0, 10)} // on the stack
	text = text.add(optionAccount, appendAccount(text.values, in.Account))
	text = text.add(optionSocketID, in.Socket.Append(text.values))
	if p.IsRole() {
		stored.Options[optionRoleOf] = in.Type
		text.copyTo(stored.Options)
		return &stored
	}
	stored.Options[optionSocketPath] = in.SocketPath
	text = text.add(optionPeer, appendPeer(text.values, in.Peer))
	text = text.add(optionVersions, appendList(text.values, in.Versions))
	stored.Options[optionSource] = string(in.Source)
	text = text.add(optionRegisteredAt, in.RegisteredAt.UTC().AppendFormat(text.values, time.RFC3339Nano))
	if in.Rank != 0 {
		text = text.add(optionRank, strconv.AppendUint(text.values, in.Rank, 10))
	}
	if roles := in.Registration.Roles; len(roles) > 0 {
		text = text.add(optionRoles, appendList(text.values, roles))
	}
	if in.Registration.WatchEndpoint {
		stored.Options[optionEndpointWatched] = "true"
	}
	text.copyTo(stored.Options)
	return &stored
}

// optionText concatenates the values of options, so that they share one string, which makes many registrations measurably cheaper.
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

// fromStored is the inverse of toStored. It returns a copy.
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
	in := &plugin.Instance{Type: cmp.Or(stored[optionRoleOf], p.Type)}
	var wrong [7]error
	in.Socket, wrong[0] = plugin.ParseSocketID(stored[optionSocketID])
	in.Account, wrong[1] = parseAccount(stored[optionAccount])
	if p.Instance = in; !p.IsRole() {
		in.ID, in.Name, in.Endpoint = p.AllocID, p.Name, p.ConnectionInfo.SocketPath
		in.SocketPath, in.Source = stored[optionSocketPath], plugin.Source(stored[optionSource])
		in.Peer, wrong[2] = parsePeer(stored[optionPeer])
		in.Versions, wrong[3] = parseList(stored[optionVersions])
		in.Rank, wrong[4] = parseRank(stored[optionRank])
		in.RegisteredAt, wrong[5] = time.Parse(time.RFC3339Nano, stored[optionRegisteredAt])
		in.Registration = plugin.Registration{Details: p.Options, WatchEndpoint: stored[optionEndpointWatched] != ""}
		in.Registration.Roles, wrong[6] = parseList(stored[optionRoles])
		if len(in.Versions) == 0 || p.Version != in.Versions[0] {
			in.Registration.Version = p.Version
		}
	}
	p.Damage = errors.Join(wrong[:]...)
	return p
}

// appendList appends a list as JSON. It uses encoding/json only for strings that need escapes, which few versions and roles do: the depth
// of encoding/json makes the stack of a new goroutine grow, which takes longer than the rest of [toStored].
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
		return 0, nil // toStored omits zero
	}
	rank, err := strconv.ParseUint(s, 10, 63) // later ranks are greater
	if err != nil {
		return 0, fmt.Errorf("rank %q is not a number below 2⁶³: %w", s, err)
	}
	return rank, nil
}

func appendAccount(b []byte, a plugin.Account) []byte {
	if !a.Known {
		return b
	}
	b = append(strconv.AppendUint(b, uint64(a.UID), 10), ' ')
	return strconv.AppendUint(b, uint64(a.GID), 10)
}

func parseAccount(s string) (plugin.Account, error) {
	if s == "" {
		return plugin.Account{}, nil // the system did not report it
	}
	account := plugin.Account{Known: true}
	_, err := fmt.Sscanf(s, "%d %d", &account.UID, &account.GID)
	if err != nil || string(appendAccount(nil, account)) != s {
		return plugin.Account{}, fmt.Errorf("account %q is not of the form UID GID", s)
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
	p.Boot = s[strings.LastIndexByte(s, ' ')+1:] // empty if the system does not name boots
	if err != nil || string(appendPeer(nil, p)) != s {
		return plugin.Peer{}, fmt.Errorf("peer %q is not of the form PID START BOOT", s)
	}
	return p, nil
}
