package fleet

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
)

// write brings etcd from what it has of the node to what is wanted. A claim also writes the presence key, and does not rely on what is
// known of the others. After an error, what etcd has is not known, and the next write is again one of everything.
func (s *session) write(ctx context.Context, wanted content, claim bool) error {
	before := s.held
	s.held.revisions = nil
	w := writing{session: s, claim: claim, revisions: map[string]int64{}}
	for key, revision := range before.revisions {
		w.revisions[key] = revision
	}
	now := time.Now()
	if claim || wanted.recordSum != before.content.recordSum {
		value, err := wanted.encodeRecord(now)
		if err != nil {
			return err
		}
		w.put(recordKey, value)
	}
	slot := before.slot
	if claim || wanted.pluginsSum != before.content.pluginsSum {
		s.generation++
		parts, err := wanted.encodeParts(s.instance, s.generation, now)
		if err != nil {
			return err
		}
		if slot, err = w.putParts(ctx, parts, before, claim); err != nil {
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
	// then and size are those of the next transaction; puts and removed are its keys.
	then    []clientv3.Op
	size    int
	puts    []string
	removed []func(key string) bool
	// revisions are those of the keys after the transactions so far.
	revisions map[string]int64
}

func (w *writing) put(key string, value []byte) {
	w.then = append(w.then, clientv3.OpPut(w.node+key, string(value), clientv3.WithLease(w.leases.retention)))
	w.size += len(value)
	w.puts = append(w.puts, key)
}

// remove removes the parts of a slot from one on, if there may be any.
func (w *writing) remove(slot, from int) {
	beyond := func(key string) bool {
		in, part, ok := parsePart(key)
		return ok && in == slot && part >= from
	}
	known := false
	for key := range w.revisions {
		known = known || beyond(key)
	}
	if !known {
		return
	}
	key, end := partsFrom(w.node, slot, from)
	w.then = append(w.then, clientv3.OpDelete(key, clientv3.WithRange(end)))
	w.removed = append(w.removed, beyond)
}

// putParts adds the parts, and commits in between if they are too many for one transaction. They are then written beside those that count.
func (w *writing) putParts(ctx context.Context, parts [][]byte, before held, claim bool) (slot int, err error) {
	size := w.size
	for _, part := range parts {
		size += len(part)
	}
	if size > maxTxn {
		slot = 1 - before.slot
		if claim {
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
	ctx, cancel := within(ctx, w.config.Timeout)
	defer cancel()
	response, err := w.store.commit(ctx, conditions, w.then, nil)
	switch {
	case err != nil && isLeaseLost(err):
		return errLeaseLost
	case err != nil:
		return err
	case !response.Succeeded:
		return errLeaseLost // or somebody else has the name now, which the next session finds out
	}
	w.count(func(st *Stats) { st.Writes++; st.Bytes += uint64(w.size) })
	for _, gone := range w.removed {
		for key := range w.revisions {
			if gone(key) {
				delete(w.revisions, key)
			}
		}
	}
	for _, key := range w.puts {
		w.revisions[key] = response.Header.Revision
	}
	w.claim, w.then, w.size, w.puts, w.removed = false, nil, 0, nil, nil
	return nil
}
