package locks

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/regular"
	"github.com/patchbay-dev/patchbay/plugin"
)

// roster has the contenders for all locks, as read over one connection to etcd. The first contender for a lock may take it when no node
// whose key is gone can consider itself the holder any more.
type roster struct {
	space      keys.Space
	listed     time.Time     // when the keys were listed: keys that were removed earlier are not known
	revision   int64         // of the last change
	longest    time.Duration // the longest lease that was seen
	contenders keys.Contenders
	quiet      map[plugin.Name]time.Time // the time until which a node without a key may consider itself the holder
}

func newRoster(s keys.Space, longest time.Duration, listed time.Time, revision int64, kvs []*mvccpb.KeyValue) *roster {
	r := &roster{space: s, listed: listed, revision: revision, longest: longest, quiet: map[plugin.Name]time.Time{}}
	for _, kv := range kvs {
		r.put(kv, listed)
	}
	return r
}

func (r *roster) apply(events []*clientv3.Event, now time.Time) {
	for _, event := range events {
		r.put(event.Kv, now)
		r.revision = event.Kv.ModRevision
	}
}

// put records the value of a key. If the key of the first contender for a lock is gone and did not have the value left, its node may still
// consider itself the holder.
func (r *roster) put(kv *mvccpb.KeyValue, now time.Time) {
	before, after := r.contenders.Put(r.space, kv)
	r.longest = max(r.longest, after.TTL)
	isSame := before.Created == 0 || after.Created == before.Created
	hasLeft := string(kv.Value) == keys.ContenderLeft && kv.CreateRevision == before.Created
	if isSame || hasLeft {
		return
	}
	first := r.contenders.First(before.Lock)
	if until := now.Add(before.TTL); (first.Created == 0 || first.Created > before.Created) && until.After(r.quiet[before.Lock]) {
		r.quiet[before.Lock] = until
	}
}

func (r *roster) forget(now time.Time) {
	maps.DeleteFunc(r.quiet, func(_ plugin.Name, until time.Time) bool { return until.Before(now) })
}

// has reports whether etcd has the key of a contender as it was created. A key that was created after the last change counts as unchanged.
func (r *roster) has(c keys.Contender) bool {
	known := r.contenders.Get(c.Lock, c.Key(r.space))
	return known.Created == c.Created && known.Lease == c.Lease || c.Created > r.revision
}

// isFirst reports whether a contender is the first one, and from when on it may take the lock.
func (r *roster) isFirst(c keys.Contender) (first bool, free time.Time) {
	free = r.listed.Add(r.longest)
	if quiet := r.quiet[c.Lock]; quiet.After(free) {
		free = quiet
	}
	return r.contenders.First(c.Lock).Created == c.Created, free
}

var errWentBack = errors.New("the revisions of etcd went back; the node competes again, with greater tokens")

// ledger is what a node knows of the tokens of all locks. A token is the sum of a base and a revision of etcd. After a restore, revisions
// are repeated: a node that notices this raises the base above each token that may exist.
type ledger struct {
	file string // empty for none
	base int64
	mark int64 // the greatest sum of base and revision that was seen
	kept int64 // the value of mark that the file has
}

func openLedger(file string) (*ledger, error) {
	l := &ledger{file: file}
	if file == "" {
		return l, nil
	}
	text, err := regular.Read(file)
	if err == nil {
		_, err = fmt.Sscanf(string(text), "%d %d\n", &l.base, &l.mark)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the greatest fencing token: %w; fix or remove file %s", err, file)
	}
	l.kept = l.mark
	return l, nil
}

// see records the revision and the greatest base of a linearizable answer of etcd. It returns the base for new tokens, and reports whether
// revisions went back.
func (l *ledger) see(revision, base int64) (newBase int64, wentBack bool) {
	l.base = max(l.base, base)
	if wentBack = l.base+revision < l.mark; wentBack {
		l.base = l.mark
	}
	l.mark = max(l.mark, l.base+revision)
	return l.base, wentBack
}

// keep writes the mark to the file.
func (l *ledger) keep() error {
	if l.file == "" || l.kept == l.mark {
		return nil
	}
	if err := regular.Replace(l.file, fmt.Sprintf("%d %d\n", l.base, l.mark)); err != nil {
		return fmt.Errorf("cannot keep the greatest fencing token: %w", err)
	}
	l.kept = l.mark
	return nil
}
