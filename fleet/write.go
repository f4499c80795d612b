package fleet

import (
	"context"
	"maps"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
)

// held is what etcd has of the node, as far as it is known.
type held struct {
	content content
	// claim says that the content is not known, and that the next write claims the name of the node: it writes everything, with the presence.
	claim bool
	// revisions has the revision of each key, by its name below the range of the node; nil if that is not known.
	revisions map[string]int64
	// slot has the generation that counts.
	slot int
}

// write brings etcd from what it has of the node to what is wanted. After an error, what etcd has is not known, and the next write is again
// one of everything.
func (s *session) write(ctx context.Context, wanted content) error {
	before := s.held
	s.held.revisions = nil
	w := writing{session: s, claim: before.claim, revisions: maps.Clone(before.revisions)}
	now := time.Now()
	if before.claim || !wanted.sameRecord(before.content) {
		value, err := wanted.encodeRecord(now)
		if err != nil {
			return err
		}
		w.put(recordKey, value)
	}
	slot := before.slot
	if before.claim || !wanted.samePlugins(before.content) {
		s.generation++
		parts, err := wanted.encodeParts(s.instance, s.generation, now)
		if err != nil {
			return err
		}
		if slot, err = w.putParts(ctx, parts, before); err != nil {
			return err
		}
	}
	if err := w.commit(ctx); err != nil {
		return err
	}
	s.held = held{content: wanted, revisions: w.revisions, slot: slot}
	s.succeeded(now)
	return nil
}

// writing is the transactions of one write.
type writing struct {
	*session
	// claim says that the next transaction has to put the presence key.
	claim bool
	// then, size and puts are the requests of the next transaction, the size of its values, and the keys that it puts.
	then []clientv3.Op
	size int
	puts []string
	// revisions has the keys that there are after the next transaction, and the revisions of those that it does not put.
	revisions map[string]int64
}

func (w *writing) put(key string, value []byte) {
	w.then = append(w.then, clientv3.OpPut(w.node+key, string(value), clientv3.WithLease(w.leases.retention)))
	w.size += len(value)
	w.puts = append(w.puts, key)
}

// remove removes the parts of a slot from one on, if there may be any.
func (w *writing) remove(slot, from int) {
	before := len(w.revisions)
	maps.DeleteFunc(w.revisions, func(key string, _ int64) bool {
		in, part, ok := parsePart(key)
		return ok && in == slot && part >= from
	})
	if len(w.revisions) < before {
		key, end := partsFrom(w.node, slot, from)
		w.then = append(w.then, clientv3.OpDelete(key, clientv3.WithRange(end)))
	}
}

// putParts adds the parts, and commits in between if they are too many for one transaction. They are then written beside those that count.
func (w *writing) putParts(ctx context.Context, parts [][]byte, before held) (slot int, err error) {
	size := w.size
	for _, part := range parts {
		size += len(part)
	}
	if size > maxTxn {
		slot = 1 - before.slot
		if before.claim {
			slot = w.emptySlot()
		}
	}
	for i, part := range parts {
		if w.size > 0 && w.size+len(part) > maxTxn {
			if err := w.commit(ctx); err != nil {
				return 0, err
			}
		}
		w.put(partKey(slot, i), part)
	}
	w.remove(slot, len(parts))
	w.remove(1-slot, 0)
	return slot, nil
}

// emptySlot returns a slot without keys, or the last one.
func (w *writing) emptySlot() int {
	for key := range w.revisions {
		if slot, _, ok := parsePart(key); ok && slot == 0 {
			return 1
		}
	}
	return 0
}

// commit writes what was added.
func (w *writing) commit(ctx context.Context) error {
	conditions := w.mine()
	if w.claim {
		value, err := deterministic.Marshal(&fleetv1.Presence{Format: format, Instance: w.instance})
		if err != nil {
			return err
		}
		w.then = append(w.then, clientv3.OpPut(w.node+presenceKey, string(value), clientv3.WithLease(w.leases.presence)))
		w.puts = append(w.puts, presenceKey)
		conditions = []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(w.node+presenceKey), "=", w.present)}
	}
	if len(w.then) == 0 {
		return nil
	}
	response, err := w.store.commit(ctx, conditions, w.then)
	switch {
	case err != nil && !isLeaseUnknown(err):
		return err
	case err != nil || !response.Succeeded:
		return errLeaseLost // or somebody else has the name now, which the next session finds out
	}
	w.count(func(st *Stats) { st.Writes++; st.Bytes += uint64(w.size) })
	for _, key := range w.puts {
		w.revisions[key] = response.Header.Revision
	}
	w.claim, w.then, w.size, w.puts = false, nil, 0, nil
	return nil
}
