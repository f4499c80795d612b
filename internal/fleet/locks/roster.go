package locks

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/internal/fleet"
	"github.com/patchbay-dev/patchbay/internal/regular"
)

// roster has the contenders for all locks, as read over one connection to etcd. A contender may take the lock when there is no earlier one,
// and when none whose key is gone can still consider itself the holder.
type roster struct {
	space      fleet.Space
	listed     time.Time     // before the list began on which all that follows is based: what vanished earlier is not known
	revision   int64         // of the last change
	longest    time.Duration // the longest lease that was seen
	contenders fleet.Contenders
	quiet      map[fleet.Lock]time.Time // until when a contender that vanished may consider itself the holder
}

// newRoster returns the roster of a list that began at a time.
func newRoster(s fleet.Space, longest time.Duration, listed time.Time, revision int64, kvs []*mvccpb.KeyValue) *roster {
	r := &roster{
		space: s, listed: listed, revision: revision, longest: longest, quiet: map[fleet.Lock]time.Time{},
	}
	for _, kv := range kvs {
		r.put(kv, listed)
	}
	return r
}

func (r *roster) apply(events []*clientv3.Event, now time.Time) {
	for _, event := range events {
		r.put(event.Kv, now)
		r.revision = event.Kv.ModRevision // that of the answer may be of a later change
	}
}

// put records what etcd has of a key. If the first contender for a lock is gone without having announced that, its node may still consider
// itself the holder.
func (r *roster) put(kv *mvccpb.KeyValue, now time.Time) {
	before, after := r.contenders.Put(r.space, kv)
	r.longest = max(r.longest, after.TTL)
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

// SettingsCondition is the name of the condition of an [Elector].
const SettingsCondition = "fleet-settings"

// comparison is how the settings of other nodes differ from those of this one.
type comparison struct {
	prefix string // of the keys
	own    string
	notify func(fleet.Condition) // nil for none

	mu        sync.Mutex
	others    map[string]string // by node, those that differ
	condition fleet.Condition
}

func newComparison(c Config) *comparison {
	same := fleet.Condition{Name: SettingsCondition, OK: true}
	return &comparison{prefix: c.Space.SettingsKey(""), own: c.Settings, notify: c.Differ, condition: same}
}

func (c *comparison) get() fleet.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.condition
}

// apply records the settings that have changed, or all of them. A deletion has no value. It notifies if the condition has changed.
func (c *comparison) apply(all bool, kvs ...*mvccpb.KeyValue) {
	c.mu.Lock()
	if all {
		c.others = map[string]string{}
	}
	for _, kv := range kvs {
		node, text := strings.TrimPrefix(string(kv.Key), c.prefix), string(kv.Value)
		delete(c.others, node)
		if text != "" && text != c.own && fleet.ValidateNode(node) == nil {
			c.others[node] = text
		}
	}
	before, now := c.condition, fleet.Condition{Name: SettingsCondition, OK: len(c.others) == 0}
	if !now.OK {
		if now.Since = before.Since; before.OK {
			now.Since = time.Now()
		}
		first := slices.Min(slices.Collect(maps.Keys(c.others)))
		now.Message = fmt.Sprintf("nodes of the fleet differ in fleet.exclusive or fleet.presence: %d from this one, node %s for example, which "+
			"has %.200s where this one has %s; exclusive plugins may be active there too: give all nodes the same",
			len(c.others), first, strings.ToValidUTF8(c.others[first], "\uFFFD"), c.own)
	}
	c.condition = now
	c.mu.Unlock()
	if now != before && c.notify != nil {
		c.notify(now)
	}
}

var errWentBack = errors.New("the revisions of etcd went back; the node competes again, with greater tokens")

// ledger is what a node knows of the tokens of all locks. A token is a base plus a revision of etcd. After a restore revisions come again;
// a node that notices raises the base above every token that it knows can have been given.
type ledger struct {
	file string // empty for none
	base int64
	mark int64 // the greatest sum of base and revision that was seen
	kept int64 // the mark in the file
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

// see records one linearizable answer of etcd: its revision and the greatest base in it. It returns the base that counts, and reports
// whether revisions went back.
func (l *ledger) see(revision, base int64) (counts int64, back bool) {
	l.base = max(l.base, base)
	if back = l.base+revision < l.mark; back {
		l.base = l.mark
	}
	l.mark = max(l.mark, l.base+revision)
	return l.base, back
}

// keep writes the mark to the file, if it has changed.
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
