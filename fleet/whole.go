package fleet

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// maxDeadAsked bounds for how many dead nodes etcd is asked when they were last alive.
const maxDeadAsked = 256

// whole is what etcd has of all nodes. It is the source of a [Reader].
type whole struct {
	reader *Reader
	facts  map[string]*facts
	// anchor is the last write that was seen, and removal the last removal after it. If etcd has both, a watch continues after the write:
	// every removal since is then applied once more, which changes nothing.
	anchor, removal anchor
	listed          bool
	// contact is when etcd last answered.
	contact time.Time
}

// anchor is a write, or a removal.
type anchor struct {
	key      string
	revision int64
	value    uint64 // the hash of the value; zero for a removal
}

func anchorOf(kv *mvccpb.KeyValue) anchor {
	return anchor{string(kv.Key), kv.ModRevision, hash(string(kv.Value))}
}

// read reads nothing if etcd has the history that is known, else all nodes. How these differ from what was known is announced.
func (w *whole) read(ctx context.Context, from store) (reading, error) {
	prefix := w.reader.config.Space.nodes()
	r := reading{key: prefix, end: clientv3.GetPrefixRangeEnd(prefix), revision: w.anchor.revision}
	if known, err := w.isIn(ctx, from); known || err != nil {
		return r, err
	}
	fresh := &whole{facts: map[string]*facts{}}
	var err error
	r.revision, err = readPages(ctx, from, prefix, func(kv *mvccpb.KeyValue) {
		if name, key, ok := w.split(kv.Key); ok {
			fresh.put(name, key, kv)
		}
	})
	if err != nil {
		return reading{}, err
	}
	if !w.listed {
		date(ctx, from, fresh.facts)
	}
	r.install = func(now time.Time) {
		if !w.listed {
			w.contact = now
		}
		w.facts, w.anchor, w.removal = fresh.facts, fresh.anchor, anchor{}
		for name := range w.reader.members {
			if w.facts[name] == nil {
				w.show(name, w.contact, w.listed)
			}
		}
		for name := range w.facts {
			w.show(name, w.contact, w.listed)
		}
		w.listed, w.contact = true, now
	}
	return r, nil
}

// isIn reports whether what was seen is in the history of etcd.
func (w *whole) isIn(ctx context.Context, from store) (bool, error) {
	for _, seen := range []anchor{w.anchor, w.removal} {
		if seen.key == "" {
			continue
		}
		found, err := from.get(ctx, seen.key, clientv3.WithRev(seen.revision))
		if known := rpctypes.Error(err); errors.Is(known, rpctypes.ErrCompacted) || errors.Is(known, rpctypes.ErrFutureRev) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		there := anchor{key: seen.key, revision: seen.revision} // removed
		for _, kv := range found.Kvs {
			there = anchorOf(kv)
		}
		if there != seen {
			return false, nil
		}
	}
	return w.anchor.key != "", nil
}

// apply makes all changes of one revision visible at once.
func (w *whole) apply(events []*clientv3.Event, now time.Time) (again bool) {
	w.contact = now
	touched := map[string]bool{}
	for _, event := range events {
		name, key, ok := w.split(event.Kv.Key)
		if !ok {
			continue
		}
		if event.Type == mvccpb.Event_DELETE {
			if known := w.facts[name]; known != nil {
				known.delete(key)
			}
			w.removal = anchor{key: string(event.Kv.Key), revision: event.Kv.ModRevision}
		} else {
			w.put(name, key, event.Kv)
		}
		touched[name] = true
	}
	for name := range touched {
		w.show(name, now, true)
	}
	return false
}

// split returns the node of a key, and the rest of the key.
func (w *whole) split(key []byte) (name, rest string, ok bool) {
	below, ok := strings.CutPrefix(string(key), w.reader.config.Space.nodes())
	if !ok {
		return "", "", false
	}
	name, rest, ok = strings.Cut(below, "/")
	return name, rest, ok && ValidateNode(name) == nil
}

// put records a value.
func (w *whole) put(name, key string, kv *mvccpb.KeyValue) {
	known := w.facts[name]
	if known == nil {
		known = &facts{}
	}
	if !known.put(key, kv) {
		return
	}
	w.facts[name] = known
	if key != presenceKey && kv.ModRevision >= w.anchor.revision { // a presence has the same value again after each claim
		w.anchor, w.removal = anchorOf(kv), anchor{}
	}
}

// show makes what is known of a node visible.
func (w *whole) show(name string, now time.Time, announce bool) {
	var shown *member
	if known := w.facts[name]; known != nil && !known.empty() {
		shown = known.member(name, w.reader.members[name], now.Add(-w.reader.config.Presence))
	} else if known != nil && !known.cordon.Drained { // a cordon has no lease: it is there when the node comes back
		delete(w.facts, name)
	}
	w.reader.publish(name, shown, announce)
}

// date finds out when nodes that were dead before the reader began were last alive: a node renews its retention lease.
func date(ctx context.Context, from store, all map[string]*facts) {
	asked := 0
	for _, known := range all {
		if known.state() != NodeUnreachable || known.record.lease == 0 {
			continue
		}
		if asked++; asked > maxDeadAsked {
			return
		}
		ago, err := from.renewed(ctx, known.record.lease)
		switch {
		case err == nil:
			known.renewed = time.Now().Add(-ago)
		case !isLeaseUnknown(err): // else its retention has just ended
			return // it is not worth more
		}
	}
}
