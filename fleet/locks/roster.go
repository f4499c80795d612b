package locks

import (
	"maps"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/fleet"
)

// roster has the contenders for all locks, as read over one connection to etcd. A contender may take the lock when there is no earlier one,
// and when none whose key is gone can still consider itself the holder.
type roster struct {
	space fleet.Space
	// listed is before the list began on which all that follows is based. What vanished earlier is not known.
	listed time.Time
	// revision is that of the last change.
	revision int64
	// longest is the longest lease that was seen.
	longest    time.Duration
	contenders fleet.Contenders
	// quiet is until when a contender that vanished may consider itself the holder.
	quiet map[fleet.Lock]time.Time
}

// newRoster returns the roster of a list that began at a time.
func newRoster(s fleet.Space, longest time.Duration, listed time.Time, revision int64, kvs []*mvccpb.KeyValue) *roster {
	r := &roster{
		space: s, listed: listed, revision: revision, longest: longest, contenders: fleet.Contenders{}, quiet: map[fleet.Lock]time.Time{},
	}
	for _, kv := range kvs {
		r.put(kv, listed)
	}
	return r
}

// apply records changes.
func (r *roster) apply(events []*clientv3.Event, now time.Time) {
	for _, event := range events {
		r.put(event.Kv, now)
		r.revision = event.Kv.ModRevision // that of the answer may be of a later change
	}
}

// put records what etcd has of a key. If the first contender for a lock is gone without having announced that, its node may still consider
// itself the holder.
func (r *roster) put(kv *mvccpb.KeyValue, now time.Time) {
	before := r.contenders.Put(r.space, kv)
	after := r.contenders.Get(before.Lock, string(kv.Key))
	if c, ok := fleet.ParseContender(r.space, kv); ok {
		r.longest = max(r.longest, c.TTL)
	}
	isSame := before.Created == 0 || after.Created == before.Created
	hasLeft := string(kv.Value) == fleet.ContenderLeft && kv.CreateRevision == before.Created
	if isSame || hasLeft {
		return
	}
	first := r.contenders.First(before.Lock)
	if until := now.Add(before.TTL); (first.Created == 0 || first.Created > before.Created) && until.After(r.quiet[before.Lock]) {
		r.quiet[before.Lock] = until
	}
}

// forget removes what does not matter any more.
func (r *roster) forget(now time.Time) {
	maps.DeleteFunc(r.quiet, func(_ fleet.Lock, until time.Time) bool { return until.Before(now) })
}

// has reports whether etcd has a key as it was created, as far as the roster knows: what it does not know yet counts as unchanged.
func (r *roster) has(c fleet.Contender) bool {
	known := r.contenders.Get(c.Lock, c.Key(r.space))
	return known.Created == c.Created && known.Lease == c.Lease || c.Created > r.revision
}

// isFirst reports whether a contender is the first one, and from when on it may then take the lock.
func (r *roster) isFirst(c fleet.Contender) (first bool, free time.Time) {
	free = r.listed.Add(r.longest)
	if quiet := r.quiet[c.Lock]; quiet.After(free) {
		free = quiet
	}
	return r.contenders.First(c.Lock).Created == c.Created, free
}
