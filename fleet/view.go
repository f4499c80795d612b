package fleet

import (
	"slices"
	"time"

	"github.com/patchbay-dev/patchbay/reconciler"
)

// NodeState says whether a node is there.
type NodeState string

// The states of a node.
const (
	// NodeReady: its presence has not expired.
	NodeReady NodeState = "ready"
	// NodeUnreachable: its presence expired without a shutdown.
	NodeUnreachable NodeState = "unreachable"
	// NodeStopped: its daemon shut down cleanly.
	NodeStopped NodeState = "stopped"
	// NodeUnknown: its record is missing or malformed.
	NodeUnknown NodeState = "unknown"
)

// Node is one node of the fleet. Its slices must not be changed.
type Node struct {
	Name  string
	State NodeState
	// Instance identifies this start of its daemon.
	Instance string
	// Address is HOST:PORT at which it takes calls; empty if it takes none.
	Address string
	// Version is the version of Patchbay that it runs.
	Version string
	// StartedAt is when its daemon started, by its own clock.
	StartedAt time.Time
	// LastSeen is when it was last known to be alive: when it stopped or last renewed its presence, or, if it was gone before the reader came,
	// when it last wrote or renewed its retention. It may then have been alive until SeenBefore, which is zero otherwise. Both are zero while
	// it is ready.
	LastSeen, SeenBefore time.Time
	// Conditions are ordered by name.
	Conditions []Condition
	// Plugins is the number of instances that it has published.
	Plugins int
	// Labels are the labels that the operator gave the node; the map must not be changed.
	Labels map[string]string
	Cordon Cordon
}

// Cordon says whether a node is drained: calls that may go to any node then go to others, as long as there are any.
type Cordon struct {
	Drained bool
	// Since is when it was drained, and By the node on which that was requested.
	Since time.Time
	By    string
}

// Plugin is one instance of a plugin on one node. Its slices and maps must not be changed.
type Plugin struct {
	Node, Type, Name, Version string
	// State is what the node published, and [reconciler.StateUnreachable] if the node is not ready.
	State reconciler.State
	// Published is what the node published last.
	Published reconciler.State
	// NodeState is the state of the node.
	NodeState NodeState
	// Instance is its identifier; empty if it was never registered.
	Instance string
	// Endpoint is the path on its node at which its services answer.
	Endpoint string
	Source   reconciler.Source
	// Roles are further types under which it is registered.
	Roles []string
	// Details are what the handler of its type found out about it; nil if they are too large for the fleet.
	Details      map[string]string
	RegisteredAt time.Time
	// LastSeen is that of the node.
	LastSeen time.Time
	// Current says that it is the one that is dispensed for its type and name on its node.
	Current bool
	// Unhealthy says that it reports that it is not serving, or does not answer: calls that may go to any node prefer healthy instances.
	Unhealthy bool

	nodeLabels map[string]string
}

// Instance is a plugin that can be called now, and where.
type Instance struct {
	Plugin
	// Address is HOST:PORT of the node's daemon; empty if it takes no calls.
	Address string
	// Drained says that the node is the last to be called.
	Drained bool

	of     *member
	lookup *Lookup // that found it; nil for none
}

// away says that the node is not known to be there. It may be: its presence also ends while etcd is away.
func (i Instance) away() bool { return i.NodeState == NodeUnreachable }

// preferred says that nothing speaks against a call.
func (i Instance) preferred() bool { return !i.away() && !i.Drained && !i.Unhealthy }

// callable says whether a plugin that is current may be called: its node has said so last and is there, or may be.
func (i Instance) callable() bool {
	return i.Published == reconciler.StateRegistered && (i.NodeState == NodeReady || i.NodeState == NodeUnreachable)
}

// Filter selects plugins. Each list that is not empty has to contain the value of the plugin.
type Filter struct {
	// Types also match the roles of a plugin.
	Types, Names, Nodes, Versions []string
	States                        []reconciler.State
	// Labels are those that the node must have.
	Labels map[string]string
	// Health makes [Reader.Watch] also report when the reader loses or regains etcd.
	Health bool

	// few, if it is not zero, says that this many nodes are enough.
	few int
	// by is the user who asks; zero for one who is not known.
	by uint32
	// may, if it is not nil, says whether a node may offer the plugin that is looked for.
	may func(node string) bool
}

// MatchNode says whether a node passes: its name and its labels count.
func (f Filter) MatchNode(n Node) bool { return anyOf(f.Nodes, n.Name) && hasAll(n.Labels, f.Labels) }

// match says whether a plugin passes.
func (f Filter) match(p Plugin) bool {
	return (anyOf(f.Types, p.Type) || slices.ContainsFunc(p.Roles, func(role string) bool { return slices.Contains(f.Types, role) })) &&
		anyOf(f.Names, p.Name) && anyOf(f.Nodes, p.Node) && anyOf(f.Versions, p.Version) && anyOf(f.States, p.State) &&
		hasAll(p.nodeLabels, f.Labels) && (f.may == nil || f.may(p.Node))
}

// hasAll says whether a node with these labels has all that are wanted.
func hasAll(labels, wanted map[string]string) bool {
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

// ChangeKind says what a [Change] is.
type ChangeKind string

// The kinds of changes.
const (
	Added   ChangeKind = "added"
	Changed ChangeKind = "changed"
	Removed ChangeKind = "removed"
	// Resync replaces changes that a subscriber was too slow to read: it should take a new snapshot.
	Resync ChangeKind = "resync"
)

// Change is one change in the fleet, of a node or of a plugin.
type Change struct {
	Kind ChangeKind
	// Node or Plugin is what changed, as it is now, or as it was if it was removed.
	Node   *Node
	Plugin *Plugin
	// Health says how current the reader is, if that is what changed and the [Filter] asks for it. Node and Plugin are then nil.
	Health *Health

	pluginBefore *Plugin // what it was if it was changed
}

// through returns what a change is for someone who sees only what passes a filter, and false if it is nothing.
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
	was, is := f.match(*c.pluginBefore), f.match(*c.Plugin)
	switch {
	case !was:
		return Change{Kind: Added, Plugin: c.Plugin}, is
	case !is:
		return Change{Kind: Removed, Plugin: c.pluginBefore}, true
	}
	return c, true
}

// Snapshot is the fleet at one moment.
type Snapshot struct {
	// Nodes are ordered by name.
	Nodes []Node
	// Plugins are ordered by type, name and node, and as the node has them within a node: newest first.
	Plugins []Plugin
}

// Health says how current a reader is.
type Health struct {
	// Current says that the reader is following etcd. What it returns is then never older than a lost presence takes to expire.
	Current bool
	// Message says why it is not, and Since is when that began; both are zero if Current.
	Message string
	Since   time.Time
}

// lose takes over why the reader, or a publisher, is not current. News says that this was not known.
func (h *Health) lose(message string) (news bool) {
	news = h.Current || h.Message != message
	if h.Current {
		h.Since = time.Now()
	}
	h.Current, h.Message = false, message
	return news
}
