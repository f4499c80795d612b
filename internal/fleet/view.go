package fleet

import (
	"cmp"
	"maps"
	"reflect"
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

// Node is one node of the fleet. Its slices and maps must not be changed.
type Node struct {
	Name      string
	State     NodeState
	Instance  string    // identifies this start of its daemon
	Address   string    // HOST:PORT at which it takes calls; empty for none
	Version   string    // of Patchbay
	StartedAt time.Time // of its daemon, by its own clock
	// LastSeen is when the node was last known to be alive: when it stopped or last renewed its presence. If the reader did not follow etcd
	// at that time, the exact time is unknown: the node may have been alive until SeenBefore, which is zero otherwise. Both are zero while
	// the node is ready.
	LastSeen, SeenBefore time.Time

	Conditions []plugin.Condition // ordered by name
	Plugins    int                // the number of instances that it has published
	Labels     map[string]string
	Cordon     Cordon
}

// Cordon describes whether a node is drained. Calls to any node go to a drained node only if no other node can take them.
type Cordon struct {
	Drained bool
	Since   time.Time // when it was drained
	By      string    // the name of the node on which the drain was requested
}

// Instance is one instance of a plugin on one node. Its slices and maps must not be changed.
type Instance struct {
	Node, Type, Name, Version string

	Published    plugin.State // the state that the node published
	State        plugin.State // the same, or [plugin.StateUnreachable] if the node is not ready
	NodeState    NodeState
	ID           string // see [plugin.Status.Instance]; empty if it was never registered
	Endpoint     string // the path on its node at which its services answer
	Source       plugin.Source
	Roles        []string
	Details      map[string]string // from the handler of its type; nil if they are too large for the fleet
	RegisteredAt time.Time
	// LastSeen and SeenBefore are those of the node.
	LastSeen, SeenBefore time.Time
	Current              bool // the instance is the one that is dispensed for its type and name on its node
	Unhealthy            bool // the instance is not serving or does not respond; calls to any node prefer healthy instances

	// Address is the HOST:PORT at which the daemon of the node takes calls; empty for none. Drained reports whether the node is drained.
	// Only Find sets them.
	Address string
	Drained bool

	nodeLabels map[string]string
	of         *member
	cache      *nodeCache // the cache of the lookup that found the instance; nil for none
}

// Called records that the instance was called, for a [Lookup] that keeps the nodes that were called.
func (i Instance) Called() {
	if i.cache != nil {
		i.cache.add(i.of)
	}
}

func (i Instance) isPreferred() bool {
	return i.NodeState != NodeUnreachable && !i.Drained && !i.Unhealthy
}

// isCallable reports whether a current instance may be called.
func (i Instance) isCallable() bool {
	return i.Published == plugin.StateRegistered && (i.NodeState == NodeReady || i.NodeState == NodeUnreachable)
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
func (f Filter) MatchNode(n Node) bool {
	return anyOf(f.Nodes, n.Name) && HasLabels(n.Labels, f.Labels)
}

func (f Filter) match(p Instance) bool {
	return (anyOf(f.Types, p.Type) || slices.ContainsFunc(p.Roles, func(role string) bool { return slices.Contains(f.Types, role) })) &&
		anyOf(f.Names, p.Name) && anyOf(f.Nodes, p.Node) && anyOf(f.Versions, p.Version) && anyOf(f.States, p.State) &&
		HasLabels(p.nodeLabels, f.Labels) && (f.May == nil || f.May(p.Node))
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
		return c, f.MatchNode(*c.Node)
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
	Nodes   []Node     // ordered by name
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

// record is the published state of a node: everything except its name, its state and the cordon.
type record struct {
	readable             bool
	node                 Node
	plugins              []*Instance // they do not change
	stoppedAt, writtenAt time.Time
	lease                clientv3.LeaseID
	weight               uint64
}

// member is one node as readers see it. It does not change after it was published.
type member struct {
	node    Node
	plugins []*Instance // the plugins in the order in which the node published them
	weight  uint64      // of a step to this view of the node
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
			f.record = recordOf(value)
			f.record.lease = clientv3.LeaseID(kv.Lease)
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
	case !f.record.readable:
		return NodeUnknown
	case f.present:
		return NodeReady
	case !f.record.stoppedAt.IsZero():
		return NodeStopped
	}
	return NodeUnreachable
}

// member returns the node as readers see it now. before is the previous view; nil for none. If the presence of the node has just ended, the
// node was alive at a time from seen, which is zero if unknown, to latest.
func (f *facts) member(name string, before *member, seen, latest time.Time) *member {
	m := &member{node: f.record.node, plugins: f.record.plugins, weight: f.record.weight}
	m.node.Name, m.node.Cordon, m.node.Plugins = name, f.cordon, len(m.plugins)
	m.node.State = f.state()
	switch {
	case f.present:
	case m.node.State == NodeStopped:
		m.node.LastSeen = slices.MinFunc([]time.Time{f.record.stoppedAt, time.Now()}, time.Time.Compare) // the clock of the node may be ahead
	case before != nil && !before.node.LastSeen.IsZero() && before.node.Instance == m.node.Instance:
		m.node.LastSeen, m.node.SeenBefore = before.node.LastSeen, before.node.SeenBefore
	default:
		known := slices.MaxFunc([]time.Time{seen, f.renewed, f.record.writtenAt}, time.Time.Compare)
		if m.node.LastSeen = slices.MinFunc([]time.Time{known, latest}, time.Time.Compare); !seen.Equal(latest) {
			m.node.SeenBefore = latest
		}
	}
	return m
}

// plugin returns a plugin of the node as readers see it.
func (m *member) plugin(published *Instance) Instance {
	p := *published
	p.Node, p.NodeState, p.nodeLabels = m.node.Name, m.node.State, m.node.Labels
	p.LastSeen, p.SeenBefore = m.node.LastSeen, m.node.SeenBefore
	if m.node.State != NodeReady {
		p.State = plugin.StateUnreachable
	}
	return p
}

// comparePlugins orders the plugins of a node for comparisons.
func comparePlugins(a, b *Instance) int {
	return cmp.Or(strings.Compare(a.Type, b.Type), strings.Compare(a.Name, b.Name),
		strings.Compare(a.ID, b.ID), strings.Compare(a.Endpoint, b.Endpoint))
}

func (m *member) sorted() []*Instance {
	if m == nil {
		return nil
	}
	return slices.SortedStableFunc(slices.Values(m.plugins), comparePlugins)
}

// step leads from one view of a node to the next; either may be nil. Its changes are computed when a subscriber reads it, so that a node
// that repeatedly disappears and returns is one entry for each subscriber, regardless of the number of its plugins. The zero value replaces
// lost steps.
type step struct {
	before, after *member
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
			!before.node.LastSeen.Equal(after.node.LastSeen) || !before.node.SeenBefore.Equal(after.node.SeenBefore))
	for len(old) > 0 || len(now) > 0 {
		order := len(now) - len(old) // if one of the lists is empty
		if len(old) > 0 && len(now) > 0 {
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

// intern returns a string that is in memory once: many nodes have the same types, names, versions and paths.
func intern(s string) string { return unique.Make(s).Value() }

func recordOf(r *fleetv1.NodeRecord) record {
	published := record{readable: true, node: Node{
		Instance: r.GetInstance(), Address: r.GetAddress(), Version: intern(r.GetVersion()), StartedAt: timeOf(r.GetStartedAt()),
	}, stoppedAt: timeOf(r.GetStoppedAt()), writtenAt: timeOf(r.GetWrittenAt())}
	published.weight = uint64(proto.Size(r)+entries(r)*entrySize) / weightUnit
	published.node.Labels = interned(r.GetLabels())
	for _, c := range r.GetConditions() {
		published.node.Conditions = append(published.node.Conditions,
			plugin.Condition{Name: intern(c.GetName()), OK: c.GetOk(), Message: intern(c.GetMessage()), Since: timeOf(c.GetSince())})
	}
	for _, p := range r.GetPlugins() {
		published.plugins = append(published.plugins, pluginOf(p))
	}
	return published
}

func pluginOf(r *fleetv1.PluginRecord) *Instance {
	state := plugin.State(intern(r.GetState()))
	published := &Instance{
		Type: intern(r.GetType()), Name: intern(r.GetName()), Version: intern(r.GetVersion()), State: state, Published: state,
		ID: r.GetInstance(), Endpoint: intern(r.GetEndpoint()), Source: plugin.Source(intern(r.GetSource())),
		Roles: r.GetRoles(), RegisteredAt: timeOf(r.GetRegisteredAt()), Current: r.GetCurrent(), Unhealthy: r.GetUnhealthy(),
	}
	for i, role := range published.Roles {
		published.Roles[i] = intern(role)
	}
	published.Details = interned(r.GetDetails())
	return published
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
