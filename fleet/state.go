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
	hasRecord bool             // whether the key exists
	record    record           // the zero value if it is malformed
	parts     map[string]*part // by key; nil for one that is malformed
	cordon    Cordon
}

// record is what a node says of itself: all of the node but its name, its state and what concerns its plugins.
type record struct {
	readable             bool
	node                 Node
	stoppedAt, writtenAt time.Time
	lease                clientv3.LeaseID
}

// part is one part of a generation.
type part struct {
	instance   string
	generation uint64
	parts      int
	revision   int64
	writtenAt  time.Time
	plugins    []*Plugin // what the node says of them, which does not change
}

// member is one node as readers see it. It does not change once it is published.
type member struct {
	node    Node
	lease   clientv3.LeaseID
	plugins []*Plugin // in the order of the node, as it says of them
}

// put takes a value over. It returns false for a key that is not one of a node's.
func (f *facts) put(key string, kv *mvccpb.KeyValue) bool {
	switch _, number, isPart := parsePart(key); {
	case key == presenceKey:
		f.present = true
	case key == recordKey:
		var value fleetv1.NodeRecord
		f.hasRecord, f.record = true, record{}
		if proto.Unmarshal(kv.Value, &value) == nil {
			f.record = recordOf(&value)
			f.record.readable, f.record.lease = true, clientv3.LeaseID(kv.Lease)
		}
	case key == cordonKey:
		var value fleetv1.Cordon
		_ = proto.Unmarshal(kv.Value, &value) // the key alone says it
		f.cordon = Cordon{Drained: true, Since: timeOf(value.GetSince()), By: value.GetBy()}
	case isPart:
		var value fleetv1.PluginsPart
		var p *part
		if proto.Unmarshal(kv.Value, &value) == nil && value.GetPart() == uint32(number) && value.GetParts() > 0 && value.GetParts() <= maxParts {
			p = partOf(&value, kv.ModRevision)
		}
		if f.parts == nil {
			f.parts = map[string]*part{}
		}
		f.parts[key] = p
	default:
		return false
	}
	return true
}

// delete takes the end of a key over.
func (f *facts) delete(key string) {
	switch key {
	case presenceKey:
		f.present = false
	case recordKey:
		f.hasRecord, f.record = false, record{}
	case cordonKey:
		f.cordon = Cordon{}
	default:
		delete(f.parts, key)
	}
}

func (f *facts) empty() bool { return !f.present && !f.hasRecord && len(f.parts) == 0 }

// complete returns the generation of a slot, if all of its parts are there.
func (f *facts) complete(slot int) []*part {
	first := f.parts[partKey(slot, 0)]
	if first == nil {
		return nil
	}
	all := []*part{first}
	for number := 1; number < first.parts; number++ {
		p := f.parts[partKey(slot, number)]
		if p == nil || p.instance != first.instance || p.generation != first.generation || p.parts != first.parts {
			return nil
		}
		all = append(all, p)
	}
	return all
}

// member returns the node as readers see it now. Before is what they saw; nil for nothing. Now is when the node was last known to be alive
// if it was until this moment.
func (f *facts) member(name string, before *member, now time.Time) *member {
	m := &member{node: f.record.node, lease: f.record.lease}
	m.node.Name, m.node.Cordon = name, f.cordon
	writtenAt := f.record.writtenAt
	var latest []*part
	for slot := range slots {
		if parts := f.complete(slot); len(parts) > 0 && (len(latest) == 0 || parts[0].revision > latest[0].revision) {
			latest = parts
		}
	}
	switch {
	case len(latest) > 0:
		for _, p := range latest {
			m.plugins = append(m.plugins, p.plugins...)
		}
		m.node.Generation = latest[0].generation
		if latest[0].writtenAt.After(writtenAt) {
			writtenAt = latest[0].writtenAt
		}
	case before != nil && len(f.parts) > 0:
		m.plugins, m.node.Generation = before.plugins, before.node.Generation // one is being written
	}
	m.node.Plugins = len(m.plugins)
	switch {
	case !f.record.readable:
		m.node.State = NodeUnknown
	case f.present:
		m.node.State = NodeReady
	case !f.record.stoppedAt.IsZero():
		m.node.State = NodeStopped
	default:
		m.node.State = NodeUnreachable
	}
	switch {
	case f.present:
	case m.node.State == NodeStopped:
		m.node.LastSeen = f.record.stoppedAt
	case before == nil:
		m.node.LastSeen = writtenAt
	case before.node.LastSeen.IsZero():
		m.node.LastSeen = now
	default:
		m.node.LastSeen = before.node.LastSeen
	}
	if m.node.LastSeen.After(now) {
		m.node.LastSeen = now // the node's clock is ahead
	}
	return m
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
	case !sameNode(before.node, after.node):
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

// sameNode says whether two views of a node are alike. The generation is no change by itself: that of its plugins is.
func sameNode(a, b Node) bool {
	a.Generation = b.Generation
	return reflect.DeepEqual(a, b)
}

// intern returns a string that is kept once, however often it occurs: types, names, versions and paths are alike on many nodes.
func intern(s string) string { return unique.Make(s).Value() }

func recordOf(r *fleetv1.NodeRecord) record {
	said := record{node: Node{
		Instance: r.GetInstance(), Address: r.GetAddress(), Version: intern(r.GetVersion()), StartedAt: timeOf(r.GetStartedAt()),
	}, stoppedAt: timeOf(r.GetStoppedAt()), writtenAt: timeOf(r.GetWrittenAt())}
	for key, value := range r.GetLabels() {
		if said.node.Labels == nil {
			said.node.Labels = make(map[string]string, len(r.GetLabels()))
		}
		said.node.Labels[intern(key)] = intern(value)
	}
	for _, c := range r.GetConditions() {
		said.node.Conditions = append(said.node.Conditions,
			Condition{Name: intern(c.GetName()), OK: c.GetOk(), Message: intern(c.GetMessage()), Since: timeOf(c.GetSince())})
	}
	return said
}

func partOf(v *fleetv1.PluginsPart, revision int64) *part {
	p := &part{instance: v.GetInstance(), generation: v.GetGeneration(), parts: int(v.GetParts()), revision: revision,
		writtenAt: timeOf(v.GetWrittenAt()), plugins: make([]*Plugin, 0, len(v.GetPlugins()))}
	for _, r := range v.GetPlugins() {
		state := reconciler.State(intern(r.GetState()))
		said := &Plugin{
			Type: intern(r.GetType()), Name: intern(r.GetName()), Version: intern(r.GetVersion()), State: state, Published: state,
			Instance: r.GetInstance(), Endpoint: intern(r.GetEndpoint()), Source: reconciler.Source(intern(r.GetSource())),
			Roles: r.GetRoles(), RegisteredAt: timeOf(r.GetRegisteredAt()), Current: r.GetCurrent(), Unhealthy: r.GetUnhealthy(),
		}
		for i, role := range said.Roles {
			said.Roles[i] = intern(role)
		}
		if len(r.GetDetails()) > 0 {
			said.Details = make(map[string]string, len(r.GetDetails()))
			for key, value := range r.GetDetails() {
				said.Details[intern(key)] = intern(value)
			}
		}
		p.plugins = append(p.plugins, said)
	}
	return p
}
