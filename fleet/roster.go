package fleet

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/patchbay-dev/patchbay/internal/backoff"
)

// roster is who stands for which lock, as etcd tells. A contender has the lock when no elder one is left, and when none can be left that
// takes itself for the holder though its key is gone.
type roster struct {
	space Space

	mu sync.Mutex
	// listed is before the list began on which all that follows is based; zero before. What vanished earlier is not known.
	listed time.Time
	// revision is that of the last change.
	revision int64
	// longest is the longest lease that was seen.
	longest    time.Duration
	contenders standing
	// quiet is until when one that vanished may take itself for the holder. When it has as many entries as sweep says, those that are over
	// are removed.
	quiet map[Lock]time.Time
	sweep int
	// changed is closed with each change, and replaced.
	changed chan struct{}
}

func newRoster(s Space, ttl time.Duration) *roster {
	return &roster{space: s, longest: ttl, contenders: standing{}, changed: make(chan struct{})}
}

// turn is whether it is a contender's turn.
type turn int

const (
	turnWaits turn = iota
	turnGone       // its key is gone, or is another one
	turnFirst
)

// turn says whether it is the turn of a hold's key, from when on it can be taken then, and when to ask again.
func (r *roster) turn(h *Hold, lease clientv3.LeaseID) (now turn, free time.Time, basis time.Time, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	free = r.listed.Add(r.longest)
	if quiet := r.quiet[h.lock]; quiet.After(free) {
		free = quiet
	}
	now = turnFirst
	all := r.contenders.of(h.lock)
	switch mine := all[h.key]; {
	case r.listed.IsZero() || !r.listed.After(h.stood) && r.revision < h.made: // not told of it yet
		now = turnWaits
	case mine.made != h.made || mine.lease != lease, h.older != "" && all[h.older].made != h.made:
		now = turnGone
	case r.elder(h.lock, h.made):
		now = turnWaits
	}
	return now, free, r.listed, r.changed
}

// basis returns when the list began on which the roster is based.
func (r *roster) basis() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.listed
}

// longestSeen returns the longest lease that a contender said it has.
func (r *roster) longestSeen() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.longest
}

// elder says whether there is a contender that was made before a revision. The caller holds mu.
func (r *roster) elder(l Lock, made int64) bool {
	for _, c := range r.contenders.of(l) {
		if c.made < made {
			return true
		}
	}
	return false
}

// of returns the locks for which there are keys under a lease.
func (r *roster) of(lease clientv3.LeaseID) (locks []Lock) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for l, contest := range r.contenders {
		for _, c := range contest.all {
			if c.lease == lease && !slices.Contains(locks, l) {
				locks = append(locks, l)
			}
		}
	}
	return locks
}

// reset takes a list over that began at a time.
func (r *roster) reset(listed time.Time, revision int64, kvs []*mvccpb.KeyValue) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listed, r.revision = listed, revision
	r.contenders, r.quiet = standing{}, map[Lock]time.Time{}
	for _, kv := range kvs {
		r.put(kv)
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// apply takes changes over.
func (r *roster) apply(revision int64, events []*clientv3.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, event := range events {
		key := string(event.Kv.Key)
		if event.Type == mvccpb.Event_DELETE {
			r.remove(key, now)
		} else {
			r.change(key, event.Kv, now)
		}
	}
	r.revision = max(r.revision, revision)
	close(r.changed)
	r.changed = make(chan struct{})
}

// change takes over that a key was written. The caller holds mu.
func (r *roster) change(key string, kv *mvccpb.KeyValue, now time.Time) {
	before, lock, known := r.find(key)
	c, stands := parseContender(r.space, kv)
	switch {
	case known && (!stands || c.lease != before.lease || c.made != before.made) && string(kv.Value) == contenderLeft && c.made == before.made:
		// It says that it does not hold the lock; that goes for its other key too.
		for other, twin := range r.contenders.of(lock) {
			if twin.made == before.made {
				r.contenders.remove(lock, other)
			}
		}
	case known && (!stands || c.lease != before.lease || c.made != before.made):
		r.remove(key, now)
	}
	r.put(kv)
}

// put takes a key over. The caller holds mu.
func (r *roster) put(kv *mvccpb.KeyValue) {
	if c, ok := r.contenders.put(r.space, kv); ok {
		r.longest = max(r.longest, c.ttl)
	}
}

// find returns what is known of a key. The caller holds mu.
func (r *roster) find(key string) (c contender, l Lock, known bool) {
	if l, known = lockIn(r.space, key); known {
		c, known = r.contenders.of(l)[key]
	}
	return c, l, known
}

// remove takes over that a key is gone without a word: the node may take itself for the holder, if it was the first. The caller holds mu.
func (r *roster) remove(key string, now time.Time) {
	c, l, known := r.find(key)
	if !known {
		return
	}
	r.contenders.remove(l, key)
	ttl := c.ttl
	if ttl == 0 {
		ttl = r.longest
	}
	if until := now.Add(ttl); !r.elder(l, c.made) && until.After(r.quiet[l]) {
		if len(r.quiet) >= r.sweep {
			maps.DeleteFunc(r.quiet, func(_ Lock, until time.Time) bool { return until.Before(now) })
			r.sweep = max(2*len(r.quiet), minSweep)
		}
		r.quiet[l] = until
	}
}

// minSweep is with how few entries it is not worth while to look for old ones.
const minSweep = 64

// follow keeps the roster until the term ends. Behind a new connection etcd may have another history, so everything is read again.
func (e *Elector) follow(t *term) {
	for t.living.Err() == nil {
		if err := e.followOnce(t); err != nil && t.living.Err() == nil {
			e.log.Debug("fleet: the contenders for locks are read again", "error", explain(err))
		}
		backoff.Pause(t.living, e.config.TTL/100)
	}
}

func (e *Elector) followOnce(t *term) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(t.living))
	defer cancel()
	listed := time.Now()
	asking, done := context.WithTimeout(ctx, e.timeout)
	defer done()
	found, err := t.client.Get(asking, e.config.Space.elections(), clientv3.WithPrefix())
	if err != nil {
		return err
	}
	t.roster.reset(listed, found.Header.GetRevision(), found.Kvs)
	e.judge(t)
	tell(e.changed) // there may be keys of this node that it does not want
	settings, err := e.settings(ctx, asking, t)
	if err != nil {
		return err
	}
	changes := t.client.Watch(ctx, e.config.Space.elections(), clientv3.WithPrefix(), clientv3.WithRev(found.Header.GetRevision()+1))
	for e.conns.since().Before(listed) {
		select {
		case response, open := <-changes:
			if err := response.Err(); err != nil || !open {
				return err
			}
			t.roster.apply(response.Header.GetRevision(), response.Events)
			e.judge(t)
		case response, open := <-settings:
			if err := response.Err(); err != nil || !open {
				return err
			}
			e.compare.apply(response.Events)
		case <-e.conns.began:
		case <-t.living.Done():
			return nil
		}
	}
	return nil
}

// settings compares the settings of all nodes, and returns how they change. Without the right to read them there is nothing to compare.
func (e *Elector) settings(ctx, asking context.Context, t *term) (clientv3.WatchChan, error) {
	prefix := e.config.Space.settings()
	found, err := t.client.Get(asking, prefix, clientv3.WithPrefix())
	if errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for _, kv := range found.Kvs {
		texts[string(kv.Key)] = string(kv.Value)
	}
	e.compare.change(true, texts)
	return t.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(found.Header.GetRevision()+1)), nil
}

// judge ends the holds whose turn is over.
func (e *Elector) judge(t *term) {
	e.mu.Lock()
	holds := make([]*Hold, 0, len(e.held))
	for _, h := range e.held {
		holds = append(holds, h)
	}
	e.mu.Unlock()
	for _, h := range holds {
		if now, _, _, _ := t.roster.turn(h, t.lease); now != turnFirst {
			e.fell(h)
		}
	}
}
