package fleet

import (
	"context"
	"fmt"
	"slices"
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
	// recordKey has everything that the node publishes, so that each change is one value.
	recordKey = "record"
	// cordonKey says that the node is drained. Operators write it, under no lease.
	cordonKey = "cordon"
)

// held is what etcd has of the node.
type held struct {
	// record is what was written last, nil if that is not known.
	record *fleetv1.NodeRecord
	// at are the revisions at which the keys were written.
	at revisions
	// claim is whether the next write claims the name of the node: it writes everything, with the presence.
	claim bool
}

// revisions are those of the keys of a node; zero for a key that does not exist.
type revisions struct{ presence, record int64 }

// write brings etcd from what it has of the node to what is wanted, in one transaction, with the names that are new in the index. After an
// error, what etcd has is not known, and the next write is one of everything.
func (s *session) write(ctx context.Context, wanted *fleetv1.NodeRecord) error {
	before, now := s.held, time.Now()
	s.held = held{}
	dated := proto.CloneOf(wanted)
	dated.WrittenAt = timestamppb.New(now)
	value, err := deterministic.Marshal(dated)
	if err != nil {
		return err
	}
	if len(value) > maxRecord || entries(wanted) > maxEntries {
		return fmt.Errorf("its %d plugins take %d bytes, and one node may publish %d bytes with %d entries; run some of them on another node",
			len(wanted.GetPlugins()), len(value), maxRecord, maxEntries)
	}
	conditions, then := s.mine(), []clientv3.Op{clientv3.OpPut(s.node+recordKey, string(value), clientv3.WithLease(s.leases.retention))}
	if before.claim {
		s.remember()
		presence, err := deterministic.Marshal(&fleetv1.Presence{Instance: s.instance})
		if err != nil {
			return err
		}
		lease := clientv3.WithLease(s.leases.presence)
		then = append(then, clientv3.OpPut(s.node+presenceKey, string(presence), lease),
			clientv3.OpPut(s.config.Space.SettingsKey(s.config.Node), s.config.Settings, lease))
		conditions = []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.node+presenceKey), "=", before.at.presence)}
	}
	names := s.missing(wanted.GetPlugins())
	revision, err := s.commit(ctx, conditions, append(then, s.index(names)...))
	if err != nil {
		return err
	}
	for _, name := range names {
		s.indexed[name] = true
	}
	s.count(func(st *Stats) { st.Writes++; st.Bytes += uint64(len(value)) })
	s.held = held{record: wanted, at: revisions{before.at.presence, revision}}
	if before.claim {
		s.held.at.presence = revision
	}
	s.succeeded(now)
	return nil
}

const (
	// maxRecord is the greatest size in bytes of the record of a node: etcd refuses requests above 1.5 MiB by default.
	maxRecord = 1280 << 10
	// maxEntries bounds the plugins, conditions and labels of a record. In memory they take a hundred times their size if they are empty.
	maxEntries = 20_000
	// maxDetails is the size from which on the details of a plugin are left out.
	maxDetails = 32 << 10
)

func entries(r *fleetv1.NodeRecord) int {
	return len(r.GetPlugins()) + len(r.GetConditions()) + len(r.GetLabels())
}

var deterministic = proto.MarshalOptions{Deterministic: true}

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
