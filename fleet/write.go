package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// The keys of a node, below its range.
const (
	presenceKey = "presence"
	recordKey   = "record"
	pluginsKey  = "plugins/"
	// cordonKey says that the node is drained. Operators write it, under no lease.
	cordonKey = "cordon"
)

// slots is the number of places for the parts of a generation.
const slots = 2

// maxParts bounds the number of parts of a generation that a reader believes in.
const maxParts = 4096

// partKey returns the key of a part, below the range of its node.
func partKey(slot, part int) string { return fmt.Sprintf("%s%d/%04d", pluginsKey, slot, part) }

// partsFrom returns the range of the parts of a slot from one on.
func partsFrom(node string, slot, part int) (key, end string) {
	return node + partKey(slot, part), clientv3.GetPrefixRangeEnd(node + fmt.Sprintf("%s%d/", pluginsKey, slot))
}

// parsePart reads what partKey wrote.
func parsePart(key string) (slot, part int, ok bool) {
	rest, isPart := strings.CutPrefix(key, pluginsKey)
	first, second, both := strings.Cut(rest, "/")
	slot, err1 := strconv.Atoi(first)
	part, err2 := strconv.Atoi(second)
	ok = isPart && both && err1 == nil && err2 == nil && slot >= 0 && slot < slots && part >= 0 && part < maxParts
	return slot, part, ok && key == partKey(slot, part)
}

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
		w.names = s.missing(wanted.plugins)
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
	// names are those that the next transaction adds to the index: together with the plugins, so that a caller who sees one finds the other.
	names []string
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
		w.remember()
		value, err := deterministic.Marshal(&fleetv1.Presence{Instance: w.instance})
		if err != nil {
			return err
		}
		w.then = append(w.then, clientv3.OpPut(w.node+presenceKey, string(value), clientv3.WithLease(w.leases.presence)), w.settle())
		w.puts = append(w.puts, presenceKey)
		conditions = []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(w.node+presenceKey), "=", w.present)}
	}
	if len(w.then) == 0 {
		return nil
	}
	revision, err := w.session.commit(ctx, conditions, append(w.then, w.index(w.names)...))
	if err != nil {
		return err
	}
	w.count(func(st *Stats) { st.Writes++; st.Bytes += uint64(w.size) })
	for _, key := range w.puts {
		w.revisions[key] = revision
	}
	for _, name := range w.names {
		w.indexed[name] = true
	}
	w.claim, w.then, w.size, w.puts, w.names = false, nil, 0, nil, nil
	return nil
}

const (
	// maxPart is the size in bytes from which on the plugins of a node are split; etcd refuses requests above 1.5 MiB by default.
	maxPart = 256 << 10
	// maxTxn is the size of the values that are written in one transaction.
	maxTxn = 1 << 20
	// maxDetails is the size from which on the details of a plugin are left out.
	maxDetails = 32 << 10
)

var deterministic = proto.MarshalOptions{Deterministic: true}

// content is what a node publishes, without what changes with each writing.
type content struct {
	record  *fleetv1.NodeRecord
	plugins []*fleetv1.PluginRecord
}

func (c content) sameRecord(other content) bool { return proto.Equal(c.record, other.record) }

func (c content) samePlugins(other content) bool {
	return slices.EqualFunc(c.plugins, other.plugins, func(a, b *fleetv1.PluginRecord) bool { return proto.Equal(a, b) })
}

// encodeRecord returns the value of the record key.
func (c content) encodeRecord(now time.Time) ([]byte, error) {
	record := proto.CloneOf(c.record)
	record.WrittenAt = timestamppb.New(now)
	return deterministic.Marshal(record)
}

// encodeParts returns the values of the plugins keys: at least one.
func (c content) encodeParts(instance string, generation uint64, now time.Time) ([][]byte, error) {
	groups := [][]*fleetv1.PluginRecord{nil}
	size := 0
	for _, p := range c.plugins {
		n := proto.Size(p) + 8
		if last := len(groups) - 1; size+n > maxPart && len(groups[last]) > 0 {
			groups = append(groups, nil)
			size = 0
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], p)
		size += n
	}
	if len(groups) > maxParts {
		return nil, fmt.Errorf("cannot publish %d plugins: they would take %d parts, and %d is the most", len(c.plugins), len(groups), maxParts)
	}
	values := make([][]byte, len(groups))
	for i, group := range groups {
		value, err := deterministic.Marshal(&fleetv1.PluginsPart{
			Instance: instance, Generation: generation, Parts: uint32(len(groups)), Part: uint32(i),
			WrittenAt: timestamppb.New(now), Plugins: group,
		})
		if err != nil {
			return nil, fmt.Errorf("cannot encode the plugins of the node: %w", err)
		}
		values[i] = value
	}
	return values, nil
}

// pluginRecords returns what is published of the plugins of a node: those that have said who they are.
func pluginRecords(statuses []reconciler.Status, unhealthy map[string]bool) []*fleetv1.PluginRecord {
	records := make([]*fleetv1.PluginRecord, 0, len(statuses))
	for _, s := range statuses {
		if s.Type == "" || s.Name == "" || s.State == reconciler.StateUnlinked { // the last is for its own node to see, and gone for others
			continue
		}
		if s.State == reconciler.StateIdle { // which is its own node's business: who calls it notices nothing
			s.State = reconciler.StateRegistered
		}
		p := &fleetv1.PluginRecord{
			Type: valid(s.Type), Name: valid(s.Name), Version: valid(s.Version), State: valid(string(s.State)), Instance: valid(s.Instance),
			Endpoint: valid(s.Endpoint), Source: valid(string(s.Source)), RegisteredAt: timestamp(s.RegisteredAt), Current: s.Current,
			Unhealthy: unhealthy[s.SocketPath],
		}
		for _, role := range s.Registration.Roles {
			p.Roles = append(p.Roles, valid(role))
		}
		size := 0
		for key, value := range s.Registration.Details {
			if p.Details == nil {
				p.Details = map[string]string{}
			}
			p.Details[valid(key)] = valid(value)
			size += len(key) + len(value)
		}
		if size > maxDetails {
			p.Details = nil
		}
		records = append(records, p)
	}
	return records
}

func conditionRecords(conditions []Condition) []*fleetv1.Condition {
	records := make([]*fleetv1.Condition, 0, len(conditions))
	for _, c := range conditions {
		records = append(records, &fleetv1.Condition{Name: valid(c.Name), Ok: c.OK, Message: valid(c.Message), Since: timestamp(c.Since)})
	}
	slices.SortFunc(records, func(a, b *fleetv1.Condition) int { return strings.Compare(a.GetName(), b.GetName()) })
	return records
}

// valid makes a string fit for protobuf, which refuses a whole message for one that is not UTF-8. Paths may hold any bytes.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// timeOf returns zero also for a time beyond the years 1 to 9999, which no format for times can show.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if !t.IsValid() {
		return time.Time{}
	}
	return t.AsTime()
}
