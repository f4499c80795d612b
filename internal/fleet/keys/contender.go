package keys

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/plugin"
)

// Contender is a node that competes for a lock, as recorded in its key. The contender whose key was created first holds the lock, or will.
type Contender struct {
	Lock    plugin.Name // the exclusive plugin: its type or role, and its name
	Node    string
	Token   int64         // the fencing token of the holder; zero if the node has not announced that it holds the lock
	TTL     time.Duration // the time to live of the lease: the node may consider itself the holder for that time after its key is gone
	Lease   clientv3.LeaseID
	Created int64 // the revision at which the key was created
}

// LockSpace returns the prefix of the keys of locks, which nodes that compete for locks, and callers of their holders, need to read.
func (s Space) LockSpace() string { return s.Base() + "elections/" }

// LockRange returns the prefix of the keys with which a node competes for locks.
func (s Space) LockRange(node string) string { return s.ContenderSpace() + node + "/" }

// TokenBaseKey returns the key of a node's base of fencing tokens.
func (s Space) TokenBaseKey(node string) string { return s.LockSpace() + "@base/" + node }

// ContenderSpace returns the prefix of the keys of the contenders for all locks.
func (s Space) ContenderSpace() string { return s.LockSpace() + "@node/" }

// Key returns the key with which the node competes for the lock.
func (c Contender) Key(s Space) string {
	return fmt.Sprintf("%s%s/%s/%x", s.LockRange(c.Node), url.PathEscape(c.Lock.Type), url.PathEscape(c.Lock.Name), int64(c.Lease))
}

// The values of the key of a contender.
const (
	contenderWaits = "waits %d"    // with the TTL in seconds
	contenderHolds = "holds %d %d" // with the TTL and the token
	ContenderLeft  = "left"        // the node has given up the lock, and will remove the key
)

// Value returns the value of the key.
func (c Contender) Value() string {
	seconds := int64(c.TTL / time.Second)
	if c.Token == 0 {
		return fmt.Sprintf(contenderWaits, seconds)
	}
	return fmt.Sprintf(contenderHolds, seconds, c.Token)
}

// ParseContender parses the key of a contender. It reports false for a node that has left, a key without the lease that it names, and
// anything malformed.
func ParseContender(s Space, kv *mvccpb.KeyValue) (c Contender, ok bool) {
	if c, ok = parseKey(s, string(kv.Key)); !ok || kv.Lease == 0 || int64(c.Lease) != kv.Lease || c.Key(s) != string(kv.Key) {
		return c, false
	}
	c.Created = kv.CreateRevision
	var seconds int64
	if _, err := fmt.Sscanf(string(kv.Value), contenderHolds, &seconds, &c.Token); err != nil {
		if _, err := fmt.Sscanf(string(kv.Value), contenderWaits, &seconds); err != nil {
			return c, false
		}
	}
	if seconds <= 0 || c.Token < 0 {
		return c, false
	}
	c.TTL = time.Duration(min(seconds, int64(MaxLockTTL/time.Second))) * time.Second
	return c, true
}

// parseKey parses the key of a contender without its value.
func parseKey(s Space, key string) (c Contender, ok bool) {
	rest, ok := strings.CutPrefix(key, s.ContenderSpace())
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 4 {
		return c, false
	}
	ptype, err1 := url.PathUnescape(parts[1])
	name, err2 := url.PathUnescape(parts[2])
	lease, err3 := strconv.ParseInt(parts[3], 16, 64)
	return Contender{Lock: plugin.Name{Type: ptype, Name: name}, Node: parts[0], Lease: clientv3.LeaseID(lease)},
		cmp.Or(err1, err2, err3, ValidateNode(parts[0])) == nil && ptype != "" && name != ""
}

const (
	// MaxLocks is the number of locks for which one node competes.
	MaxLocks = 4096
	// MaxLockTTL is the longest lease of its locks.
	MaxLockTTL = time.Minute
	// maxLockKeys is how many keys of one node count. After restarts it has those of its earlier leases too.
	maxLockKeys = 4 * MaxLocks
)

// Contenders has the contenders for all locks. The zero value has none.
type Contenders struct {
	contests map[plugin.Name]*contest
	keys     map[string]int // by node
}

type contest struct {
	all   map[string]Contender // by key
	first *Contender           // the one whose key was created first; nil if it has to be found
}

// Put records the value of a key, which is empty after a deletion. It returns the contender that had the key before, and the one that has
// it now; the zero value for none.
func (all *Contenders) Put(s Space, kv *mvccpb.KeyValue) (before, now Contender) {
	key := string(kv.Key)
	of, ok := parseKey(s, key)
	if !ok {
		return before, now
	}
	if all.contests == nil {
		*all = Contenders{map[plugin.Name]*contest{}, map[string]int{}}
	}
	c := cmp.Or(all.contests[of.Lock], &contest{all: map[string]Contender{}})
	before, known := c.all[key]
	had := len(c.all)
	if parsed, ok := ParseContender(s, kv); !ok {
		delete(c.all, key)
	} else if known || all.keys[of.Node] < maxLockKeys {
		now, c.all[key] = parsed, parsed
	}
	all.contests[of.Lock], c.first = c, nil
	if all.keys[of.Node] += len(c.all) - had; all.keys[of.Node] == 0 {
		delete(all.keys, of.Node)
	}
	if len(c.all) == 0 {
		delete(all.contests, of.Lock)
	}
	return before, now
}

// First returns the contender that holds a lock, or will; the zero value if there is none.
func (all *Contenders) First(l plugin.Name) Contender {
	c := all.contests[l]
	if c == nil {
		return Contender{}
	}
	if c.first == nil {
		c.first = &Contender{}
		for _, next := range c.all {
			if c.first.Created == 0 || next.Created < c.first.Created {
				*c.first = next
			}
		}
	}
	return *c.first
}

// Get returns the contender for a lock that has a key; the zero value for none.
func (all *Contenders) Get(l plugin.Name, key string) Contender {
	if c := all.contests[l]; c != nil {
		return c.all[key]
	}
	return Contender{}
}

// Holder returns the node that holds a lock, empty for none, and reports whether there are contenders.
func (all *Contenders) Holder(l plugin.Name) (node string, wanted bool) {
	first := all.First(l)
	if first.Token == 0 { // it does not know that it is first, or may not take the lock yet
		return "", first.Created != 0
	}
	return first.Node, true
}

// LockState is the state of a lock.
type LockState struct {
	Lock  plugin.Name
	Node  string   // the node that holds the lock; empty for none
	Token int64    // its fencing token
	Nodes []string // that compete for the lock, including the holder, ordered by name
}

// States returns the states of the locks that have contenders, ordered by type and name.
func (all *Contenders) States() (states []LockState) {
	for _, lock := range slices.SortedFunc(maps.Keys(all.contests), plugin.Name.Compare) {
		state := LockState{Lock: lock, Token: all.First(lock).Token}
		state.Node, _ = all.Holder(lock)
		for _, c := range all.contests[lock].all {
			state.Nodes = append(state.Nodes, c.Node)
		}
		slices.Sort(state.Nodes)
		state.Nodes = slices.Compact(state.Nodes)
		states = append(states, state)
	}
	return states
}
