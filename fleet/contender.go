package fleet

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// contender is a node that wants a lock, or holds it, as a key in etcd says.
type contender struct {
	lock Lock
	node string
	// holds says that the node has announced that it holds the lock. It may hold it without that.
	holds bool
	// ttl is how long the node may take itself for the holder after its key is gone; zero if it does not say.
	ttl   time.Duration
	lease clientv3.LeaseID
	// made and changed are revisions. The first made of all contenders is the one that may hold the lock.
	made, changed int64
}

// LockRange returns the prefix of the keys with which a node competes for locks. No other node needs to write them.
func (s Space) LockRange(node string) string { return s.contenders() + node + "/" }

// TokenBaseKey returns the key in which a node keeps the base of fencing tokens. No other node needs to write it.
func (s Space) TokenBaseKey(node string) string { return s.bases() + node }

// LockSpace returns the prefix of the keys that say who competes for locks, and which tokens there were. Nodes that compete for locks, and
// callers of their holders, need to read it.
func (s Space) LockSpace() string { return s.elections() }

func (s Space) contenders() string { return s.elections() + "@node/" }

// contenderKeys returns the keys with which a node competes for a lock under a lease: its own, and the one that earlier versions read.
func contenderKeys(s Space, node string, l Lock, lease clientv3.LeaseID) (own, older string) {
	suffix := fmt.Sprintf("/%x", int64(lease))
	return s.LockRange(node) + url.PathEscape(l.Type) + "/" + url.PathEscape(l.Name) + suffix, l.key(s) + suffix
}

// The values of a contender's own key, the first two with the lease in seconds.
const (
	contenderWaits = "waits "
	contenderHolds = "holds "
	contenderLeft  = "left"
)

// parseContender reads the key of a contender. A node that has left is none, and neither is a key without a lease, or with a lease other
// than its name says.
func parseContender(s Space, kv *mvccpb.KeyValue) (c contender, ok bool) {
	c = contender{lease: clientv3.LeaseID(kv.Lease), made: kv.CreateRevision, changed: kv.ModRevision}
	rest, below := strings.CutPrefix(string(kv.Key), s.elections())
	parts := strings.Split(rest, "/")
	value := string(kv.Value)
	switch {
	case !below || kv.Lease == 0 || parts[len(parts)-1] != fmt.Sprintf("%x", kv.Lease):
		return c, false
	case len(parts) == 5 && parts[0]+"/" == strings.TrimPrefix(s.contenders(), s.elections()):
		c.node, parts = parts[1], parts[2:]
		if value == contenderLeft {
			return c, false
		}
		waits, isWaiting := strings.CutPrefix(value, contenderWaits)
		holds, isHolding := strings.CutPrefix(value, contenderHolds)
		seconds := waits
		if c.holds = isHolding; c.holds {
			seconds = holds
		}
		if n, err := strconv.ParseInt(seconds, 10, 64); err == nil && (isWaiting || isHolding) {
			c.ttl = time.Duration(min(max(n, 0), int64(maxTTL/time.Second))) * time.Second
		}
	case len(parts) == 3:
		node, waits := strings.CutPrefix(value, candidatePrefix)
		c.node, c.holds = node, !waits
	default:
		return c, false
	}
	if c.lock, ok = parseLock(parts[0], parts[1]); !ok {
		return c, false
	}
	return c, ValidateNode(c.node) == nil
}

// parseLock reads what is between the slashes of a key.
func parseLock(ptype, name string) (Lock, bool) {
	t, err1 := url.PathUnescape(ptype)
	n, err2 := url.PathUnescape(name)
	return Lock{t, n}, err1 == nil && err2 == nil && t != "" && n != ""
}

// lockIn returns the lock that a key of a contender is about.
func lockIn(s Space, key string) (l Lock, ok bool) {
	parts := strings.Split(strings.TrimPrefix(key, s.elections()), "/")
	if len(parts) < 3 {
		return l, false
	}
	return parseLock(parts[len(parts)-3], parts[len(parts)-2])
}

// standing has the contenders for each lock.
type standing map[Lock]*contest

// contest has the contenders for one lock, by key.
type contest struct {
	all map[string]contender
	// first is the one that was made first, once somebody has asked; nil after a change.
	first *contender
}

// of returns the contenders for a lock by key, which must not be changed.
func (all standing) of(l Lock) map[string]contender {
	if c := all[l]; c != nil {
		return c.all
	}
	return nil
}

// put takes over what a key says, and returns the contender that it is about. Another one that had the key must be removed before.
func (all standing) put(s Space, kv *mvccpb.KeyValue) (c contender, ok bool) {
	if c, ok = parseContender(s, kv); ok {
		if all[c.lock] == nil {
			all[c.lock] = &contest{all: map[string]contender{}}
		}
		all[c.lock].all[string(kv.Key)] = c
		all[c.lock].first = nil
	}
	return c, ok
}

// remove takes over that a key of a lock is gone.
func (all standing) remove(l Lock, key string) {
	c := all[l]
	if c == nil {
		return
	}
	delete(c.all, key)
	c.first = nil
	if len(c.all) == 0 {
		delete(all, l)
	}
}

// holder returns the contender that says that it holds a lock; without a node if there is none. Wanted says that there are contenders: the
// first of them holds the lock, or will.
func (all standing) holder(l Lock) (holder contender, wanted bool) {
	contest := all[l]
	if contest == nil {
		return contender{}, false
	}
	if contest.first == nil {
		contest.first = &contender{}
		for _, c := range contest.all {
			if contest.first.made == 0 || c.made < contest.first.made {
				*contest.first = c
			}
		}
	}
	first := *contest.first
	if !first.holds { // it does not know yet, or may not take it yet
		return contender{}, first.made != 0
	}
	return first, true
}

// leader returns who holds a lock; without a holder, Node is empty.
func (all standing) leader(l Lock, base int64) Leader {
	c, _ := all.holder(l)
	if !c.holds {
		return Leader{Lock: l}
	}
	return Leader{Lock: l, Node: c.node, Token: base + c.changed}
}

// nodes returns the nodes that stand for a lock, in order.
func (all standing) nodes(l Lock) (nodes []string) {
	for _, c := range all.of(l) {
		nodes = append(nodes, c.node)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}
