package fleet

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
	"unique"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	fleetv1 "github.com/patchbay-dev/patchbay/api/patchbay/fleet/v1"
	"github.com/patchbay-dev/patchbay/internal/fleet/keys"
	"github.com/patchbay-dev/patchbay/plugin"
)

// NodeState is the state of a node.
type NodeState string

// The states of a node.
const (
	NodeReady       NodeState = "ready"       // its presence has not expired
	NodeUnreachable NodeState = "unreachable" // its presence expired without a shutdown
	NodeStopped     NodeState = "stopped"     // its daemon shut down
	NodeUnknown     NodeState = "unknown"     // the node has no record, or one that cannot be read
)

// Node is one node of the fleet, as readers see it. It must not be changed.
type Node struct {
	*fleetv1.NodeRecord // what the node has published, without its plugins; nil if that is missing or cannot be read
	Name                string
	State               NodeState
	// LastSeen is when the node was last known to be alive: when it stopped or last renewed its presence. If the reader did not follow etcd
	// at that time, the exact time is unknown: the node may have been alive until SeenBefore, which is zero otherwise. Both are zero while
	// the node is ready.
	LastSeen, SeenBefore time.Time
	Cordon               Cordon

	plugins []*fleetv1.PluginRecord // in the order in which the node has published them
	weight  uint64                  // of a step to this view of the node
}

// Count returns the number of instances of plugins that the node has published.
func (n *Node) Count() int { return len(n.plugins) }

// Cordon describes whether a node is drained. Calls to any node go to a drained node only if no other node can take them.
type Cordon struct {
	Drained bool
	Since   time.Time // when it was drained
	By      string    // the name of the node on which the drain was requested
}

// Instance is one instance of a plugin on one node. Its node and its record must not be changed.
type Instance struct {
	*fleetv1.PluginRecord
	Node *Node

	cache *nodeCache // the cache of the lookup that found the instance; nil for none
}

// State returns the state that the node has published, or [plugin.StateUnreachable] if the node is not ready.
func (i Instance) State() plugin.State {
	if i.Node.State != NodeReady {
		return plugin.StateUnreachable
	}
	return plugin.State(i.GetState())
}

// Called records that the instance was called, for a [Lookup] that keeps the nodes that were called.
func (i Instance) Called() {
	if i.cache != nil {
		i.cache.add(i.Node)
	}
}

func (i Instance) isPreferred() bool {
	return i.Node.State != NodeUnreachable && !i.Node.Cordon.Drained && !i.GetUnhealthy()
}

// callable returns the plugins of the node that pass a filter and may be called. The filter needs no states.
func (n *Node) callable(f Filter) (instances []Instance) {
	if n.State != NodeReady && n.State != NodeUnreachable {
		return nil
	}
	for _, p := range n.plugins {
		i := Instance{PluginRecord: p, Node: n}
		if p.GetCurrent() && p.GetState() == string(plugin.StateRegistered) && f.match(i) {
			instances = append(instances, i)
		}
	}
	return instances
}

// Filter selects plugins. A list that is not empty must contain the value of the plugin.
type Filter struct {
	Types, Names, Nodes, Versions []string // Types also match roles
	States                        []plugin.State
	Labels                        map[string]string // the labels that the node must have
	Health                        bool              // [Reader.Watch] also returns changes of the health of the reader
	Few                           int               // how many nodes [Lookup.Find] reads, if that is enough; zero for all

	By  uint32                 // the user who calls; zero if that is not known
	May func(node string) bool // reports whether a node may offer the plugin; nil for all
}

// MatchNode reports whether the name and the labels of a node pass the filter.
func (f Filter) MatchNode(n *Node) bool {
	return anyOf(f.Nodes, n.Name) && HasLabels(n.GetLabels(), f.Labels)
}

func (f Filter) match(i Instance) bool {
	hasType := func(role string) bool { return slices.Contains(f.Types, role) }
	return anyOf(f.Names, i.GetName()) && (anyOf(f.Types, i.GetType()) || slices.ContainsFunc(i.GetRoles(), hasType)) && f.MatchNode(i.Node) &&
		anyOf(f.Versions, i.GetVersion()) && anyOf(f.States, i.State()) && (f.May == nil || f.May(i.Node.Name))
}

// HasLabels reports whether labels has all wanted ones.
func HasLabels(labels, wanted map[string]string) bool {
	for key, value := range wanted {
		if has, ok := labels[key]; !ok || has != value {
			return false
		}
	}
	return true
}

func anyOf[T comparable](list []T, value T) bool {
	return len(list) == 0 || slices.Contains(list, value)
}

// ChangeKind is the kind of a [Change].
type ChangeKind string

// The kinds of changes.
const (
	Added   ChangeKind = "added"
	Changed ChangeKind = "changed"
	Removed ChangeKind = "removed"
	// Resync replaces changes that a subscriber was too slow to read. The subscriber needs a new snapshot.
	Resync ChangeKind = "resync"
)

// Change is one change in the fleet, of a node or of a plugin.
type Change struct {
	Kind ChangeKind
	// The node, plugin or health after the change, or before it if it was removed; the others are nil.
	Node   *Node
	Plugin *Instance
	Health *Health // of the reader, only with [Filter].Health

	pluginBefore *Instance // the plugin before a change; nil for other kinds
}

// through returns the change for a subscriber with a filter. It reports false if the filter excludes the change.
func (c Change) through(f Filter) (Change, bool) {
	switch {
	case c.Health != nil:
		return c, f.Health
	case c.Node != nil:
		return c, f.MatchNode(c.Node)
	case c.Plugin == nil:
		return c, true
	case c.Kind != Changed:
		return c, f.match(*c.Plugin)
	}
	matched, matches := f.match(*c.pluginBefore), f.match(*c.Plugin)
	switch {
	case !matched:
		return Change{Kind: Added, Plugin: c.Plugin}, matches
	case !matches:
		return Change{Kind: Removed, Plugin: c.pluginBefore}, true
	}
	return c, true
}

// Snapshot is the fleet at one moment.
type Snapshot struct {
	Nodes   []*Node    // ordered by name
	Plugins []Instance // ordered by type, name and node, newest first
}

// Health reports whether the view of the fleet is current.
type Health struct {
	Current bool   // etcd is followed, so the view is at most as old as the presence of a node
	Message string // the reason why the view is not current
	Since   time.Time
}

// lose records the reason why etcd is not followed, and reports whether it was followed or the reason was another one.
func (h *Health) lose(message string) (isNew bool) {
	isNew = h.Current || h.Message != message
	if h.Current {
		h.Since = time.Now()
	}
	h.Current, h.Message = false, message
	return isNew
}

// facts is the content of the keys of one node.
type facts struct {
	present   bool
	hasRecord bool   // whether the key exists
	record    record // the zero value if it is malformed or too large
	cordon    Cordon
	renewed   time.Time // when a node that was dead before the first list last renewed its retention; zero if unknown
}

// record is what a node has published.
type record struct {
	*fleetv1.NodeRecord // without plugins, and without the time when it was written; nil if it is malformed or too large
	plugins             []*fleetv1.PluginRecord
	writtenAt           time.Time
	lease               clientv3.LeaseID
	weight              uint64
}

// A record counts as one more unread step for each weightUnit of its size in memory, in which an entry has entrySize and its texts.
const weightUnit, entrySize = 32 << 10, 256

// put records the value of a key, nil for none, and reports whether nodes have such a key.
func (f *facts) put(key string, kv *mvccpb.KeyValue) bool {
	switch key {
	case keys.Presence:
		f.present = kv != nil
	case keys.Record:
		f.hasRecord, f.record = kv != nil, record{}
		if kv == nil {
			break
		}
		if value, err := decodeRecord(kv.Value); err == nil {
			f.record = recordOf(value, kv)
		}
	case keys.Cordon:
		if f.cordon = (Cordon{}); kv != nil {
			var value fleetv1.Cordon
			_ = proto.Unmarshal(kv.Value, &value) // the node is drained even if the value is invalid
			f.cordon = Cordon{Drained: true, Since: timeOf(value.GetSince()), By: value.GetBy()}
		}
	default:
		return false
	}
	return true
}

// valueOf returns the value of a key after an event, nil for none.
func valueOf(event *clientv3.Event) *mvccpb.KeyValue {
	if event.Type == mvccpb.Event_DELETE {
		return nil
	}
	return event.Kv
}

func (f *facts) isEmpty() bool { return !f.present && !f.hasRecord }

func (f *facts) state() NodeState {
	switch {
	case f.record.NodeRecord == nil:
		return NodeUnknown
	case f.present:
		return NodeReady
	case f.record.GetStoppedAt() != nil:
		return NodeStopped
	}
	return NodeUnreachable
}

// node returns the node as readers see it now. before is the previous view; nil for none. If the presence of the node has just ended, the
// node was alive at a time from seen, which is zero if unknown, to latest.
func (f *facts) node(name string, before *Node, seen, latest time.Time) *Node {
	n := &Node{
		NodeRecord: f.record.NodeRecord, Name: name, State: f.state(), Cordon: f.cordon, plugins: f.record.plugins, weight: f.record.weight,
	}
	switch {
	case f.present:
	case n.State == NodeStopped:
		n.LastSeen = slices.MinFunc([]time.Time{timeOf(n.GetStoppedAt()), time.Now()}, time.Time.Compare) // the clock of the node may be ahead
	case before != nil && !before.LastSeen.IsZero() && before.GetInstance() == n.GetInstance():
		n.LastSeen, n.SeenBefore = before.LastSeen, before.SeenBefore
	default:
		known := slices.MaxFunc([]time.Time{seen, f.renewed, f.record.writtenAt}, time.Time.Compare)
		if n.LastSeen = slices.MinFunc([]time.Time{known, latest}, time.Time.Compare); !seen.Equal(latest) {
			n.SeenBefore = latest
		}
	}
	return n
}

// comparePlugins orders the plugins of a node for comparisons.
func comparePlugins(a, b *fleetv1.PluginRecord) int {
	return cmp.Or(strings.Compare(a.GetType(), b.GetType()), strings.Compare(a.GetName(), b.GetName()),
		strings.Compare(a.GetInstance(), b.GetInstance()), strings.Compare(a.GetEndpoint(), b.GetEndpoint()))
}

func (n *Node) sorted() []*fleetv1.PluginRecord {
	if n == nil {
		return nil
	}
	return slices.SortedStableFunc(slices.Values(n.plugins), comparePlugins)
}

// movesPlugins reports whether another view of the node shows its plugins differently, even if their records are equal.
func (n *Node) movesPlugins(other *Node) bool {
	return n.State != other.State || !n.LastSeen.Equal(other.LastSeen) || !n.SeenBefore.Equal(other.SeenBefore) ||
		!maps.Equal(n.GetLabels(), other.GetLabels())
}

// step leads from one view of a node to the next; either may be nil. Its changes are computed when a subscriber reads it, so that a node
// that repeatedly disappears and returns is one entry for each subscriber, regardless of the number of its plugins. The zero value replaces
// lost steps.
type step struct {
	before, after *Node
	health        *Health // the health of the reader, if it has changed and not a node
}

// weight returns the number of unread steps as which the step counts.
func (s step) weight() uint64 {
	if s.after == nil {
		return 1
	}
	return 1 + s.after.weight
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

// differences returns the changes from one view of a node to another; either may be nil.
func differences(before, after *Node) []Change {
	var changes []Change
	moved := false
	switch {
	case before == nil && after == nil:
		return nil
	case before == nil:
		changes = append(changes, Change{Kind: Added, Node: after})
	case after == nil:
	default:
		moved = before.movesPlugins(after)
		if moved || before.Cordon != after.Cordon || before.Count() != after.Count() || !proto.Equal(before.NodeRecord, after.NodeRecord) {
			changes = append(changes, Change{Kind: Changed, Node: after})
		}
	}
	old, now := before.sorted(), after.sorted()
	for len(old) > 0 || len(now) > 0 {
		order := len(now) - len(old) // if one of the lists is empty
		if len(old) > 0 && len(now) > 0 {
			order = comparePlugins(old[0], now[0])
		}
		switch {
		case order < 0:
			changes = append(changes, Change{Kind: Removed, Plugin: &Instance{PluginRecord: old[0], Node: before}})
			old = old[1:]
		case order > 0:
			changes = append(changes, Change{Kind: Added, Plugin: &Instance{PluginRecord: now[0], Node: after}})
			now = now[1:]
		default:
			if moved || old[0] != now[0] && !proto.Equal(old[0], now[0]) {
				changes = append(changes, Change{
					Kind: Changed, Plugin: &Instance{PluginRecord: now[0], Node: after}, pluginBefore: &Instance{PluginRecord: old[0], Node: before},
				})
			}
			old, now = old[1:], now[1:]
		}
	}
	if after == nil {
		changes = append(changes, Change{Kind: Removed, Node: before})
	}
	return changes
}

// intern returns a string that is in memory once: many nodes have the same types, names, versions and paths.
func intern(s string) string { return unique.Make(s).Value() }

// recordOf returns the record of a value. Its texts are in memory once, and it has no times that time formats cannot represent.
func recordOf(r *fleetv1.NodeRecord, kv *mvccpb.KeyValue) record {
	known := record{NodeRecord: r, plugins: r.GetPlugins(), writtenAt: timeOf(r.GetWrittenAt()), lease: clientv3.LeaseID(kv.Lease)}
	known.weight = uint64(proto.Size(r)+entries(r)*entrySize) / weightUnit
	r.Plugins, r.WrittenAt, r.Version, r.Labels = nil, nil, intern(r.GetVersion()), interned(r.GetLabels())
	r.StartedAt, r.StoppedAt = timestamp(timeOf(r.GetStartedAt())), timestamp(timeOf(r.GetStoppedAt()))
	for _, c := range r.GetConditions() {
		c.Name, c.Message, c.Since = intern(c.GetName()), intern(c.GetMessage()), timestamp(timeOf(c.GetSince()))
	}
	for _, p := range known.plugins {
		for _, text := range []*string{&p.Type, &p.Name, &p.Version, &p.State, &p.Endpoint, &p.Source} {
			*text = intern(*text)
		}
		for i, role := range p.GetRoles() {
			p.Roles[i] = intern(role)
		}
		p.Details, p.RegisteredAt = interned(p.GetDetails()), timestamp(timeOf(p.GetRegisteredAt()))
	}
	return known
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
