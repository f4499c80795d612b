package fleet

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unique"

	clientv3 "go.etcd.io/etcd/client/v3"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"google.golang.org/protobuf/proto"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/reconciler"
)

// facts are what etcd has of one node.
type facts struct {
	present   bool
	hasRecord bool   // whether the key exists
	record    record // the zero value if it is malformed or too large
	cordon    Cordon
	// renewed is when a node that was dead before the reader began last renewed its retention; zero if that is not known.
	renewed time.Time
}

// record is what a node says of itself: all of the node but its name, its state and the cordon.
type record struct {
	readable             bool
	node                 Node
	plugins              []*Plugin // which do not change
	stoppedAt, writtenAt time.Time
	lease                clientv3.LeaseID
}

// member is one node as readers see it. It does not change once it is published.
type member struct {
	node    Node
	plugins []*Plugin // in the order of the node, as it says of them
}

// put records a value. It returns false for a key that is not one of a node's.
func (f *facts) put(key string, kv *mvccpb.KeyValue) bool {
	switch key {
	case presenceKey:
		f.present = true
	case recordKey:
		var value fleetv1.NodeRecord
		f.hasRecord, f.record = true, record{}
		if proto.Unmarshal(kv.Value, &value) == nil && entries(&value) <= maxEntries {
			f.record = recordOf(&value)
			f.record.lease = clientv3.LeaseID(kv.Lease)
		}
	case cordonKey:
		var value fleetv1.Cordon
		_ = proto.Unmarshal(kv.Value, &value) // the key alone says it
		f.cordon = Cordon{Drained: true, Since: timeOf(value.GetSince()), By: value.GetBy()}
	default:
		return false
	}
	return true
}

// delete records the end of a key.
func (f *facts) delete(key string) {
	switch key {
	case presenceKey:
		f.present = false
	case recordKey:
		f.hasRecord, f.record = false, record{}
	case cordonKey:
		f.cordon = Cordon{}
	}
}

func (f *facts) empty() bool { return !f.present && !f.hasRecord }

func (f *facts) state() NodeState {
	switch {
	case !f.record.readable:
		return NodeUnknown
	case f.present:
		return NodeReady
	case !f.record.stoppedAt.IsZero():
		return NodeStopped
	}
	return NodeUnreachable
}

// member returns the node as readers see it now. Before is what they saw; nil for nothing. Alive is when the node last renewed its presence,
// if that has ended just now.
func (f *facts) member(name string, before *member, alive time.Time) *member {
	m := &member{node: f.record.node, plugins: f.record.plugins}
	m.node.Name, m.node.Cordon, m.node.Plugins = name, f.cordon, len(m.plugins)
	m.node.State = f.state()
	switch {
	case f.present:
	case m.node.State == NodeStopped:
		m.node.LastSeen = earliest(f.record.stoppedAt, time.Now()) // the clock of the node may be ahead
	case before == nil:
		if m.node.LastSeen, m.node.SeenBefore = f.record.writtenAt, alive; f.renewed.After(m.node.LastSeen) {
			m.node.LastSeen = f.renewed
		}
		m.node.LastSeen = earliest(m.node.LastSeen, alive)
	case before.node.LastSeen.IsZero():
		m.node.LastSeen = alive
	default:
		m.node.LastSeen, m.node.SeenBefore = before.node.LastSeen, before.node.SeenBefore
	}
	return m
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// plugin returns a plugin as readers see it.
func (m *member) plugin(said *Plugin) Plugin {
	p := *said
	p.Node, p.NodeState, p.nodeLabels, p.LastSeen = m.node.Name, m.node.State, m.node.Labels, m.node.LastSeen
	if m.node.State != NodeReady {
		p.State = reconciler.StateUnreachable
	}
	return p
}

// comparePlugins orders the plugins of a node for comparisons.
func comparePlugins(a, b *Plugin) int {
	return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name),
		strings.Compare(a.Instance, b.Instance), strings.Compare(a.Endpoint, b.Endpoint))
}

// sorted returns the plugins in the order of comparePlugins.
func (m *member) sorted() []*Plugin {
	if m == nil {
		return nil
	}
	return slices.SortedStableFunc(slices.Values(m.plugins), comparePlugins)
}

// step leads from one view of a node to the next; either may be nil. It is kept as such until somebody reads it: a node that comes and goes
// is one entry for each subscriber, however many plugins it has. The zero value stands for steps that were left out.
type step struct {
	before, after *member
	health        *Health // if it is that of the reader that has changed, and no node
}

func (s step) changes() []Change {
	switch {
	case s == (step{}):
		return []Change{{Kind: Resync}}
	case s.health != nil:
		return []Change{{Kind: Changed, Health: s.health}}
	}
	return differences(s.before, s.after)
}

// differences returns what leads from one view of a node to another; either may be nil.
func differences(before, after *member) []Change {
	var changes []Change
	switch {
	case before == nil && after == nil:
		return nil
	case before == nil:
		changes = append(changes, Change{Kind: Added, Node: &after.node})
	case after == nil:
	case !reflect.DeepEqual(before.node, after.node):
		changes = append(changes, Change{Kind: Changed, Node: &after.node})
	}
	old, now := before.sorted(), after.sorted()
	moved := before != nil && after != nil &&
		(!maps.Equal(before.node.Labels, after.node.Labels) || before.node.State != after.node.State ||
			!before.node.LastSeen.Equal(after.node.LastSeen))
	for len(old) > 0 || len(now) > 0 {
		var order int
		switch {
		case len(old) == 0:
			order = 1
		case len(now) == 0:
			order = -1
		default:
			order = comparePlugins(old[0], now[0])
		}
		switch {
		case order < 0:
			changes = append(changes, Change{Kind: Removed, Plugin: new(before.plugin(old[0]))})
			old = old[1:]
		case order > 0:
			changes = append(changes, Change{Kind: Added, Plugin: new(after.plugin(now[0]))})
			now = now[1:]
		default:
			if moved || !reflect.DeepEqual(old[0], now[0]) {
				changes = append(changes,
					Change{Kind: Changed, Plugin: new(after.plugin(now[0])), pluginBefore: new(before.plugin(old[0]))})
			}
			old, now = old[1:], now[1:]
		}
	}
	if after == nil {
		changes = append(changes, Change{Kind: Removed, Node: &before.node})
	}
	return changes
}

// intern returns a string that is kept once, however often it occurs: types, names, versions and paths are alike on many nodes.
func intern(s string) string { return unique.Make(s).Value() }

func recordOf(r *fleetv1.NodeRecord) record {
	said := record{readable: true, node: Node{
		Instance: r.GetInstance(), Address: r.GetAddress(), Version: intern(r.GetVersion()), StartedAt: timeOf(r.GetStartedAt()),
	}, stoppedAt: timeOf(r.GetStoppedAt()), writtenAt: timeOf(r.GetWrittenAt())}
	said.node.Labels = interned(r.GetLabels())
	for _, c := range r.GetConditions() {
		said.node.Conditions = append(said.node.Conditions,
			Condition{Name: intern(c.GetName()), OK: c.GetOk(), Message: intern(c.GetMessage()), Since: timeOf(c.GetSince())})
	}
	for _, p := range r.GetPlugins() {
		said.plugins = append(said.plugins, pluginOf(p))
	}
	return said
}

func pluginOf(r *fleetv1.PluginRecord) *Plugin {
	state := reconciler.State(intern(r.GetState()))
	said := &Plugin{
		Type: intern(r.GetType()), Name: intern(r.GetName()), Version: intern(r.GetVersion()), State: state, Published: state,
		Instance: r.GetInstance(), Endpoint: intern(r.GetEndpoint()), Source: reconciler.Source(intern(r.GetSource())),
		Roles: r.GetRoles(), RegisteredAt: timeOf(r.GetRegisteredAt()), Current: r.GetCurrent(), Unhealthy: r.GetUnhealthy(),
	}
	for i, role := range said.Roles {
		said.Roles[i] = intern(role)
	}
	said.Details = interned(r.GetDetails())
	return said
}

// interned returns a copy of a map, nil for an empty one.
func interned(texts map[string]string) map[string]string {
	if len(texts) == 0 {
		return nil
	}
	all := make(map[string]string, len(texts))
	for key, value := range texts {
		all[intern(key)] = intern(value)
	}
	return all
}
