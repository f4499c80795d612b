package fleet

import (
	"bytes"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/internal/untrusted"
	"github.com/patchbay-dev/patchbay/plugin"
)

// held is the state of the keys of the node in etcd.
type held struct {
	record *fleetv1.NodeRecord // the record that was written last; nil if it is not known
	at     revisions           // the revisions at which the keys were written
	claim  bool                // the next write claims the name of the node, and writes everything
}

// revisions are the revisions of the keys of a node; zero for a missing key.
type revisions struct{ presence, record int64 }

// write writes the record and changes of the index, in one transaction. After an error, the content of etcd is unknown, and the next write
// writes everything.
func (s *session) write(ctx context.Context, wanted *fleetv1.NodeRecord) error {
	before, now := s.held, time.Now()
	s.held = held{}
	dated := proto.CloneOf(wanted)
	dated.WrittenAt = timestamppb.New(now)
	if size := proto.Size(dated); size > maxRecord || entries(wanted) > maxEntries {
		return fmt.Errorf("its %d plugins take %d bytes, and one node may publish %d bytes with %d entries; run some of them on another node",
			len(wanted.GetPlugins()), size, maxRecord, maxEntries)
	}
	value, err := encodeRecord(dated)
	if err != nil {
		return err
	}
	conditions, then := s.mine(), []clientv3.Op{clientv3.OpPut(s.node+keys.Record, string(value), clientv3.WithLease(s.leases.retention))}
	if before.claim {
		s.remember()
		presence, _ := deterministic.Marshal(&fleetv1.Presence{Instance: s.instance}) // fails for invalid text only
		lease := clientv3.WithLease(s.leases.presence)
		then = append(then, clientv3.OpPut(s.node+keys.Presence, string(presence), lease),
			clientv3.OpPut(s.space.SettingsKey(s.config.Node), s.config.Settings, lease))
		conditions = []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.node+keys.Presence), "=", before.at.presence)}
	}
	changes, done := s.index(indexedNames(wanted.GetPlugins()))
	revision, err := s.commit(ctx, conditions, append(then, changes...))
	if err != nil {
		return err
	}
	done()
	s.count(func(st *Stats) { st.Writes++; st.Bytes += uint64(len(value)); st.Published = now })
	s.held = held{record: wanted, at: revisions{before.at.presence, revision}}
	if before.claim {
		s.held.at.presence = revision
	}
	s.succeeded()
	return nil
}

const (
	maxRecord = 1280 << 10 // bytes of a record before it is compressed: by default, etcd refuses requests above 1.5 MiB
	// maxEntries bounds the plugins, conditions and labels of a record. Empty ones take a hundred times their size in memory.
	maxEntries = 20_000
	maxDetails = 32 << 10 // the maximum size of the details of a plugin in bytes; larger ones are left out
)

func entries(r *fleetv1.NodeRecord) int {
	return len(r.GetPlugins()) + len(r.GetConditions()) + len(r.GetLabels())
}

var deterministic = proto.MarshalOptions{Deterministic: true}

// encodeRecord returns the value of a record. It is compressed, because the plugins of a node are similar.
func encodeRecord(r *fleetv1.NodeRecord) ([]byte, error) {
	text, err := deterministic.Marshal(r)
	if err != nil {
		return nil, err
	}
	var value bytes.Buffer
	w, _ := compressors.Get().(*flate.Writer)
	defer compressors.Put(w)
	w.Reset(&value)
	if _, err = w.Write(text); err == nil {
		err = w.Close()
	}
	return value.Bytes(), err
}

// Compressors and decompressors are pooled: they take 600 kB and 40 kB, far more than a record.
var (
	compressors = sync.Pool{New: func() any {
		w, _ := flate.NewWriter(nil, flate.BestSpeed) // the error is for a level that does not exist
		return w
	}}
	decompressors = sync.Pool{New: func() any { return flate.NewReader(strings.NewReader("")) }}
)

// decodeRecord returns the record of a value, of at most maxRecord bytes.
func decodeRecord(value []byte) (r *fleetv1.NodeRecord, err error) {
	d, _ := decompressors.Get().(io.Reader)
	defer decompressors.Put(d)
	source, _ := d.(flate.Resetter)
	var text []byte
	if err = source.Reset(bytes.NewReader(value), nil); err == nil {
		text, err = io.ReadAll(io.LimitReader(d, maxRecord+1))
	}
	r = &fleetv1.NodeRecord{}
	if err == nil {
		err = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, r)
	}
	if err == nil && (len(text) > maxRecord || entries(r) > maxEntries) {
		err = errors.New("it is larger than a node may publish")
	}
	return r, err
}

// pluginRecords returns the records of the plugins of a node. Paths may have any bytes, but protobuf refuses strings that are not UTF-8.
func pluginRecords(statuses []plugin.Status) []*fleetv1.PluginRecord {
	records := make([]*fleetv1.PluginRecord, 0, len(statuses))
	for _, s := range statuses {
		if s.Type == "" || s.Name == "" || s.State == plugin.StateUnlinked { // only the node itself shows unlinked plugins
			continue
		}
		if s.State == plugin.StateIdle { // a call starts the plugin
			s.State = plugin.StateRegistered
		}
		p := &fleetv1.PluginRecord{
			Type: untrusted.Valid(s.Type), Name: untrusted.Valid(s.Name), Version: untrusted.Valid(s.Version),
			State: untrusted.Valid(string(s.State)), Instance: untrusted.Valid(s.Instance), Endpoint: untrusted.Valid(s.Endpoint),
			Source: untrusted.Valid(string(s.Source)), RegisteredAt: timestamp(s.RegisteredAt), Current: s.Current,
			Unhealthy: s.FailsHealthChecks(), Details: map[string]string{},
		}
		for _, role := range s.Registration.Roles {
			p.Roles = append(p.Roles, untrusted.Valid(role))
		}
		size := 0
		for key, value := range s.Registration.Details {
			p.Details[untrusted.Valid(key)] = untrusted.Valid(value)
			size += len(key) + len(value)
		}
		if size > maxDetails {
			p.Details = nil
		}
		records = append(records, p)
	}
	return records
}

func conditionRecords(conditions []plugin.Condition) []*fleetv1.Condition {
	records := make([]*fleetv1.Condition, 0, len(conditions))
	for _, c := range conditions {
		records = append(records, &fleetv1.Condition{
			Name: untrusted.Valid(c.Name), Ok: c.OK, Message: untrusted.Valid(c.Message), Since: timestamp(c.Since),
		})
	}
	slices.SortFunc(records, func(a, b *fleetv1.Condition) int { return strings.Compare(a.GetName(), b.GetName()) })
	return records
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// timeOf returns zero for a time outside of the years 1 to 9999, which time formats cannot represent.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if !t.IsValid() {
		return time.Time{}
	}
	return t.AsTime()
}

const maxOps = 100 // on the index in one transaction: etcd takes 128 by default

func indexedNames(plugins []*fleetv1.PluginRecord) map[string]bool {
	names := map[string]bool{}
	for _, p := range plugins {
		if p.GetCurrent() {
			names[p.GetName()] = true
		}
	}
	return names
}

// index returns the necessary changes of the index, as many as fit into a transaction, and a function to call after the transaction.
func (s *session) index(wanted map[string]bool) (changes []clientv3.Op, done func()) {
	var added, removed []string
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if !s.indexed[name] && len(changes) < maxOps {
			s.indexed[name] = false // the key may exist even if the transaction fails
			added = append(added, name)
			changes = append(changes, clientv3.OpPut(s.space.IndexKey(name, s.config.Node), "", clientv3.WithLease(s.leases.retention)))
		}
	}
	for name := range s.indexed {
		if !wanted[name] && len(changes) < maxOps {
			removed = append(removed, name)
			changes = append(changes, clientv3.OpDelete(s.space.IndexKey(name, s.config.Node)))
		}
	}
	return changes, func() {
		for _, name := range added {
			s.indexed[name] = true
		}
		for _, name := range removed {
			delete(s.indexed, name)
		}
	}
}

// writeIndex writes the changes of the index that did not fit into the transaction of the record.
func (s *session) writeIndex(ctx context.Context, plugins []*fleetv1.PluginRecord) error {
	wanted := indexedNames(plugins)
	for {
		changes, done := s.index(wanted)
		if len(changes) == 0 {
			return nil
		}
		if _, err := s.commit(ctx, s.mine(), changes); err != nil {
			return err
		}
		done()
	}
}

// commit commits a transaction. The error is errLeaseLost if a lease has ended or a condition fails.
func (s *session) commit(ctx context.Context, conditions []clientv3.Cmp, then []clientv3.Op) (revision int64, err error) {
	response, err := s.store.commit(ctx, conditions, then)
	switch {
	case err != nil && !IsLeaseUnknown(err):
		return 0, err
	case err != nil || !response.Succeeded:
		return 0, errLeaseLost // or another daemon has the name; the next session finds out
	}
	return response.Header.GetRevision(), nil
}
